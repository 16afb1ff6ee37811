use std::io::Write;

use super::*;

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn memory() -> Flags {
    Flags { storage_backend: Some(StorageBackend::Memory), ..Flags::default() }
}

fn refusal(flags: &Flags, environment: &[(&str, &str)]) -> String {
    load(flags, env(environment)).unwrap_err().to_string()
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let file = file("region_id = \"file\"\nheartbeat_interval_ms = 1000\nchanges_limit = 5\n");
    let environment = [
        ("FELIX_CONTROLPLANE_CONFIG", file.path().to_str().unwrap()),
        ("FELIX_REGION_ID", "environment"),
        ("FELIX_NODE_HEARTBEAT_INTERVAL_MS", "2000"),
    ];
    let flags = Flags { region_id: Some("flag".into()), ..memory() };
    let loaded = load(&flags, env(&environment)).unwrap();
    let config = &loaded.config;
    assert_eq!((config.region_id.as_str(), config.heartbeat_interval_ms), ("flag", 2_000));
    assert_eq!((config.changes_limit, config.expiry_timeout_ms), (5, 15_000));
    let printed = loaded.print(true);
    for line in [
        "region_id = \"flag\"  # flag --region-id".to_owned(),
        "heartbeat_interval_ms = 2000  # environment FELIX_NODE_HEARTBEAT_INTERVAL_MS".to_owned(),
        format!("changes_limit = 5  # file {}", file.path().display()),
        "expiry_timeout_ms = 15000  # default".to_owned(),
        "# data_dir is unset".to_owned(),
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    assert!(loaded.print(false).lines().any(|line| line == "changes_limit = 5"));
}

#[test]
fn an_unknown_key_in_the_file_names_the_nearest() {
    let file = file("hartbeat_interval_ms = 1000\n");
    let flags = Flags { config: Some(file.path().to_owned()), ..memory() };
    let text = refusal(&flags, &[]);
    assert!(text.contains("`hartbeat_interval_ms`") && text.contains("`heartbeat_interval_ms`?"), "{text}");
    let far = super::nearest("zzzzzzzzzzzzzzzz", keys());
    assert_eq!(far, None);
}

#[test]
fn a_file_that_is_not_there_or_no_toml_is_refused() {
    let flags = Flags { config: Some("/nonexistent/felix.toml".into()), ..memory() };
    assert!(refusal(&flags, &[]).contains("/nonexistent/felix.toml"));
    let file = file("= 5");
    let flags = Flags { config: Some(file.path().to_owned()), ..memory() };
    assert!(matches!(load(&flags, []), Err(ConfigError::File { .. })));
}

#[test]
fn unknown_variables_warn_and_do_not_stop() {
    let environment = [
        ("FELIX_CONTROLPLANE_BINDS", "x"),
        ("FELIX_CONTROLPLANE_URL", "http://x"),
        ("FELIX_CONTROLPLANE_TOKEN_FILE", "t"),
        ("FELIX_QUIC_BIND", "y"),
        ("OTHER", "z"),
    ];
    let loaded = load(&memory(), env(&environment)).unwrap();
    assert_eq!(
        loaded.warnings,
        ["FELIX_CONTROLPLANE_BINDS is not a setting; did you mean FELIX_CONTROLPLANE_BIND?"]
    );
}

#[test]
fn secrets_are_never_printed_and_may_look_like_numbers() {
    let environment = [("FELIX_BOOTSTRAP_ENABLED", "true"), ("FELIX_BOOTSTRAP_TOKEN", "1234567890123456")];
    let loaded = load(&memory(), env(&environment)).unwrap();
    assert_eq!(loaded.config.bootstrap_token.as_deref(), Some("1234567890123456"));
    assert!(!loaded.print(true).contains("1234567890123456"));
    let settings = format!("{:?}", loaded.config.settings());
    assert!(!settings.contains("1234567890123456"), "{settings}");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let table: [(&[(&str, &str)], &str); 12] = [
        (&[("FELIX_CONTROLPLANE_DEV", "true")], "loopback"),
        (&[("FELIX_BOOTSTRAP_ENABLED", "true")], "bootstrap_token"),
        (&[("FELIX_BOOTSTRAP_ENABLED", "true"), ("FELIX_BOOTSTRAP_TOKEN", "short")], "16 characters"),
        (&[("FELIX_BOOTSTRAP_DEV_TOKENS", "true"), ("FELIX_BOOTSTRAP_BIND_ADDR", "10.0.0.1:1")], "loopback"),
        (&[("FELIX_CONTROLPLANE_DATA_DIR", "/d")], "memory"),
        (&[("FELIX_NODE_HEARTBEAT_INTERVAL_MS", "8000")], "twice"),
        (&[("FELIX_NODE_REGRANT_MARGIN_MS", "3749")], "quarter"),
        (&[("FELIX_NODE_HEARTBEAT_INTERVAL_MS", "0")], "above 0"),
        (&[("FELIX_SHARD_RECONCILE_INTERVAL_MS", "0")], "above 0"),
        (&[("FELIX_NODE_EXPIRY_TIMEOUT_MS", "-1")], "expiry_timeout_ms"),
        (&[("FELIX_CONTROLPLANE_BIND", "nowhere")], "bind"),
        (&[("FELIX_LOG_FORMAT", "xml")], "log_format"),
    ];
    for (environment, expected) in table {
        let text = refusal(&memory(), environment);
        assert!(text.contains(expected), "{environment:?}: {text}");
    }
    let nothing = refusal(&Flags::default(), &[]);
    assert!(nothing.contains("data_dir"), "memory is taken only when asked for: {nothing}");
}

#[test]
fn a_data_folder_means_sled_and_development_does_not_wait() {
    let flags = Flags {
        data_dir: Some("d".into()),
        dev: true,
        bind: Some("127.0.0.1:0".parse().unwrap()),
        metrics_bind: Some("[::1]:0".parse().unwrap()),
        ..Flags::default()
    };
    let config = load(&flags, []).unwrap().config;
    assert_eq!(config.store_folder(), Some("d".into()));
    assert_eq!(config.predrain().as_millis(), 0);
    assert!(config.settings().durable_storage);
    assert_eq!(config.settings().lease.margin.as_millis(), 3_750);
    let config = load(&memory(), []).unwrap().config;
    assert_eq!((config.store_folder(), config.predrain().as_millis()), (None, 5_000));
}

#[test]
fn every_setting_has_one_key_and_one_variable() {
    let all = Config {
        data_dir: Some("d".into()),
        storage_backend: Some(StorageBackend::Sled),
        ready_file: Some("r".into()),
        bootstrap_token: Some("t".into()),
        bootstrap_token_previous: Some("t".into()),
        regrant_margin_ms: Some(1),
        shutdown_predrain_ms: Some(1),
        ..Config::default()
    };
    let toml::Value::Table(table) = toml::Value::try_from(&all).unwrap() else { panic!("not a table") };
    let mut fields: Vec<_> = table.keys().map(String::as_str).collect();
    let mut known: Vec<_> = keys().collect();
    fields.sort_unstable();
    known.sort_unstable();
    assert_eq!(fields, known);
}
