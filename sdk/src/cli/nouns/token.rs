//! `felix token`: development tokens from a running `felix dev`, and what a token says.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Subcommand, ValueEnum};
use felix_wire::control::{Audience, Claims, DevTokenAnswer, DevTokenRequest, Permission};

use super::{Api, Context, Failure, Format, Outcome, OutputArgs, remark};
use crate::cli::failure::output_failed;

/// Who a token is for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AudienceArg {
    Broker,
    Controlplane,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Mint a token at the control plane of a `felix dev` and print it
    Create {
        /// A right, `action:object`, such as stream.publish:stream:demo/default/*; may be repeated
        #[arg(long, required = true, value_name = "ACTION:OBJECT", value_parser = permission)]
        permission: Vec<String>,
        /// How long it is valid
        #[arg(long, default_value = "15m", value_name = "TIME", value_parser = crate::cli::duration::parse_seconds)]
        ttl: Duration,
        /// Who it is for
        #[arg(long, value_enum, default_value = "broker")]
        audience: AudienceArg,
        /// Whom it names
        #[arg(long, default_value = "developer")]
        principal: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show what a token says; nothing is verified
    Info {
        /// File that holds it, standard input when absent or `-`
        file: Option<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
}

impl Verb {
    pub fn output(&self) -> OutputArgs {
        match self {
            Verb::Create { output, .. } | Verb::Info { output, .. } => *output,
        }
    }

    /// # Errors
    /// `Usage` without a `felix dev` or for what is no token, else what the control plane said.
    pub fn run(self, context: &Context) -> Outcome {
        match self {
            Verb::Create { permission, ttl, audience, principal, .. } => {
                let (url, secret) = context.settings.bootstrap()?;
                let api = Api::bootstrap(url, secret.clone())?;
                let request = DevTokenRequest {
                    principal,
                    permissions: permission,
                    ttl_seconds: Some(ttl.as_secs()),
                    audience: match audience {
                        AudienceArg::Broker => Audience::Broker,
                        AudienceArg::Controlplane => Audience::ControlPlane,
                    },
                };
                show(context, &mint(&api, context.settings.tenant()?, &request)?)
            }
            Verb::Info { file, .. } => {
                let text = match file.filter(|path| path.as_os_str() != "-") {
                    Some(path) => std::fs::read_to_string(&path)
                        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?,
                    None => {
                        let mut text = String::new();
                        let read = io::stdin().read_to_string(&mut text);
                        read.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
                        text
                    }
                };
                context.format.one(&claims(text.trim())?)
            }
        }
    }
}

/// Asks the bootstrap listener for a development token.
///
/// # Errors
/// What the control plane said.
pub fn mint(api: &Api, tenant: &str, request: &DevTokenRequest) -> Outcome<DevTokenAnswer> {
    let path = ["internal", "bootstrap", "tenants", tenant, "dev-token"];
    api.post(&path, request).map(|answer| answer.document)
}

fn show(context: &Context, answer: &DevTokenAnswer) -> Outcome {
    if context.format == Format::Json {
        return context.format.one(answer);
    }
    // Alone on standard output, so that it can be redirected into a token file.
    writeln!(io::stdout(), "{}", answer.felix_token).map_err(|error| output_failed(&error))?;
    remark(&format!("valid for {} s", answer.expires_in));
    Ok(())
}

fn permission(text: &str) -> Result<String, String> {
    Permission::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn claims(token: &str) -> Outcome<Claims> {
    let wrong = || Failure::usage("this is no token");
    let middle = token.split('.').nth(1).ok_or_else(wrong)?;
    let bytes = URL_SAFE_NO_PAD.decode(middle).map_err(|_| wrong())?;
    serde_json::from_slice(&bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_checked_before_anything_is_sent() {
        assert!(permission("stream.publish:stream:demo/default/*").is_ok());
        let error = permission("stream.eat:stream:demo/default/*").unwrap_err();
        assert!(error.contains("invalid action"), "{error}");
    }

    #[test]
    fn claims_are_shown_and_garbage_is_a_usage_error() {
        let body =
            r#"{"iss":"felix-auth","aud":"felix-broker","sub":"me","tid":"demo","iat":1,"exp":2,"perms":[]}"#;
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(body));
        assert_eq!(claims(&token).unwrap().sub, "me");
        for garbage in ["", "a", "a.b.c", "e30.e30.x"] {
            assert_eq!(claims(garbage).unwrap_err().kind.status(), 2);
        }
    }
}
