//! The `felix` program: see `felix_sdk::cli`.

fn main() -> std::process::ExitCode {
    felix_sdk::cli::run()
}
