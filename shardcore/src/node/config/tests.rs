use super::*;

fn usable() -> Settings {
    Settings {
        quic_bind: "127.0.0.1:0".parse().unwrap(),
        node_id: Some("broker-0".to_owned()),
        controlplane_url: Some("http://127.0.0.1:8443".to_owned()),
        node_token_file: Some("token".to_owned()),
        ..Settings::default()
    }
}

fn refused(settings: &Settings) -> String {
    settings.check().unwrap_err().to_string()
}

fn origin_of<'a>(config: &'a Config, key: &str) -> &'a Origin {
    let at = SETTINGS.iter().position(|s| s.key == key).unwrap();
    &config.origins[at]
}

fn from_file(text: &str) -> Result<Config, ConfigError> {
    load(Sources { file: Some(FileText { path: "b.toml", text }), ..Sources::default() })
}

fn from_environment(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    load(Sources { environment, ..Sources::default() })
}

#[test]
fn no_name_is_used_twice() {
    let mut keys: Vec<_> = SETTINGS.iter().map(|s| s.key).collect();
    let mut names: Vec<_> = SETTINGS.iter().map(|s| s.env).collect();
    keys.sort_unstable();
    names.sort_unstable();
    assert!(keys.windows(2).all(|w| w[0] != w[1]));
    assert!(names.windows(2).all(|w| w[0] != w[1]));
    assert!(names.iter().all(|n| n.starts_with("FELIX_")));
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let environment = vec![
        ("FELIX_SPIN_US".to_owned(), "2".to_owned()),
        ("FELIX_BROKER_PUBLISH_WINDOW".to_owned(), "7".to_owned()),
    ];
    let config = load(Sources {
        file: Some(FileText { path: "b.toml", text: "spin_us = 1\npublish_window = 6\nkeepalive_ms = 5\n" }),
        environment,
        flags: vec![("spin_us", "3".to_owned())],
    })
    .unwrap();
    assert_eq!((config.settings.spin_us, origin_of(&config, "spin_us")), (3, &Origin::Flag));
    assert_eq!(
        (config.settings.publish_window, origin_of(&config, "publish_window")),
        (7, &Origin::Environment)
    );
    let file = Origin::File("b.toml".to_owned());
    assert_eq!((config.settings.keepalive_ms, origin_of(&config, "keepalive_ms")), (5, &file));
    assert_eq!((config.settings.initial_mtu, origin_of(&config, "initial_mtu")), (1_200, &Origin::Default));
}

#[test]
fn an_unknown_key_in_the_file_is_refused_with_the_nearest_name() {
    let error = from_file("tls_crt = \"a\"\nwholly_unlike_anything = 1\n").unwrap_err().to_string();
    assert!(error.contains("unknown key `tls_crt`; did you mean `tls_cert`?"), "{error}");
    assert!(error.contains("unknown key `wholly_unlike_anything`") && error.contains("b.toml"), "{error}");
}

#[test]
fn a_table_in_the_file_is_an_unknown_key() {
    let error = from_file("[tls]\ncert = \"a\"\n").unwrap_err().to_string();
    assert!(error.contains("unknown key `tls`"), "{error}");
}

#[test]
fn an_unknown_variable_is_a_warning_and_other_programs_variables_are_none() {
    let environment = [
        ("FELIX_NODE_IDD", "x"),
        ("FELIX_CONTROLPLANE_URLS", "a slip, although the control plane's names begin so"),
        ("FELIX_CONTROLPLANE_TOKEN_FILE", "t"),
        ("FELIX_BOOTSTRAP_TOKEN", "b"),
        ("PATH", "y"),
        (CONFIG_ENV, "z"),
    ];
    let config = from_environment(&environment).unwrap();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
    for name in ["FELIX_NODE_ID", "FELIX_CONTROLPLANE_URL"] {
        assert!(config.warnings.iter().any(|w| w.contains(&format!("did you mean {name}?"))));
    }
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let config = from_environment(&[("FELIX_TLS_CERT", ""), ("FELIX_SPIN_US", "")]).unwrap();
    assert_eq!(config.settings, Settings::default());
}

#[test]
fn numbers_that_are_names_stay_names() {
    let config =
        from_environment(&[("FELIX_NODE_ID", "7"), ("FELIX_CORES", "0"), ("FELIX_SHED", "1")]).unwrap();
    assert_eq!(config.settings.node_id.as_deref(), Some("7"));
    assert_eq!(config.settings.cores, CoreList::Cpus(vec![0]));
    assert!(config.settings.shed);
}

#[test]
fn a_wrong_value_names_the_place_that_holds_it() {
    let error = from_environment(&[("FELIX_SPIN_US", "soon")]).unwrap_err().to_string();
    assert!(error.contains("FELIX_SPIN_US") && error.contains("soon"), "{error}");
    let error = from_environment(&[("FELIX_QUIC_BIND", "nowhere")]).unwrap_err().to_string();
    assert!(error.contains("FELIX_QUIC_BIND"), "{error}");
    let error = from_file("pin = \"maybe\"\n").unwrap_err().to_string();
    assert!(error.contains("b.toml") && error.contains("pin"), "{error}");
    let flags = vec![("log_format", "xml".to_owned())];
    let error = load(Sources { flags, ..Sources::default() }).unwrap_err().to_string();
    assert!(error.contains("--log-format") && error.contains("xml"), "{error}");
}

#[test]
fn sizes_and_core_lists_read_as_people_write_them() {
    assert_eq!("64KiB".parse(), Ok(Size(65_536)));
    assert_eq!("16 m".parse(), Ok(Size(16 << 20)));
    assert_eq!("4096".parse(), Ok(Size(4_096)));
    assert!("4 furlongs".parse::<Size>().is_err());
    assert!("99999999TiB".parse::<Size>().is_err());
    assert!("".parse::<Size>().is_err());
    assert_eq!("0,2-4".parse(), Ok(CoreList::Cpus(vec![0, 2, 3, 4])));
    for wrong in ["", "a", "3-1", "0,0", "1-2-3", "-1", "0-99999999"] {
        assert!(wrong.parse::<CoreList>().is_err(), "{wrong}");
    }
    assert_eq!(Size(65_536).to_string(), "64KiB");
    assert_eq!(Size(1_500).to_string(), "1500");
}

#[test]
fn what_is_printed_reads_back_the_same() {
    let settings = Settings { tls_cert: Some("a \"quoted\" path".to_owned()), shed: true, ..usable() };
    let origins = vec![Origin::Default; SETTINGS.len()];
    let printed = Config { settings: settings.clone(), origins, warnings: Vec::new() }.print(true);
    assert_eq!(from_file(&printed).unwrap().settings, settings);
}

#[test]
fn printing_shows_origins_and_hides_secrets() {
    let config = from_environment(&[("FELIX_NODE_TOKEN", "hush"), ("FELIX_SPIN_US", "9")]).unwrap();
    let text = config.print(true);
    assert!(!text.contains("hush"), "{text}");
    let line = text.lines().find(|l| l.starts_with("spin_us")).unwrap();
    assert!(line.contains("spin_us = 9") && line.ends_with("# environment FELIX_SPIN_US"), "{line}");
    assert!(!config.print(false).contains("environment"));
}

#[test]
fn defaults_lack_only_what_nobody_can_guess() {
    usable().check().unwrap();
    let text = refused(&Settings::default());
    for needed in ["node_id", "controlplane_url", "node_token_file", "tls_cert"] {
        assert!(text.contains(needed), "{needed} in {text}");
    }
}

#[test]
fn pairs_that_cannot_work_are_refused() {
    type Spoil = fn(&mut Settings);
    let cases: &[(Spoil, &str)] = &[
        (|s| s.event_batch_max_bytes = Size(17 << 20), "event_batch_max_bytes"),
        (|s| s.max_frame_bytes = Size(17 << 20), "max_frame_bytes"),
        (|s| s.preauth_max_frame_bytes = Size(17 << 20), "preauth_max_frame_bytes"),
        (|s| s.stream_recv_window = Size(32 << 20), "stream_recv_window"),
        (|s| s.stream_recv_window = Size(1_024), "stream_recv_window"),
        (|s| s.subscriber_queue_capacity = 9_999, "subscriber_queue_capacity"),
        (|s| s.keepalive_ms = 6_000, "keepalive_ms"),
        (|s| s.initial_mtu = 8_900, "initial_mtu"),
        (|s| s.mtu_upper_bound = 1_000, "mtu_upper_bound"),
        (|s| s.max_udp_payload = 1_500, "max_udp_payload"),
        (|s| s.tls_cert = Some("a".to_owned()), "tls_key"),
        (|s| s.tls_require_cert = true, "tls_require_cert"),
        (|s| s.quic_bind = "[::]:5000".parse().unwrap(), "loopback"),
        (|s| s.node_id = Some("Upper".to_owned()), "node_id"),
        (|s| s.controlplane_url = Some("ftp://x".to_owned()), "controlplane_url"),
        (|s| s.node_token = Some("t".to_owned()), "node_token"),
        (|s| s.node_advertise_addr = Some("host:1".to_owned()), "node_advertise_addr"),
        (|s| s.publish_window = 0, "publish_window"),
        (|s| s.shutdown_drain_timeout_ms = 0, "shutdown_drain_timeout_ms"),
        (|s| s.ring_memory_percent = 90, "ring_memory_percent"),
        (|s| s.cache_memory_percent = 61, "cache_memory_percent"),
        (|s| s.max_streams_per_conn = 15, "max_streams_per_conn"),
        (|s| s.max_streams_per_conn = 65_537, "max_streams_per_conn"),
    ];
    for (spoil, named) in cases {
        let mut settings = usable();
        spoil(&mut settings);
        let text = refused(&settings);
        assert!(text.contains(named), "{named} in {text}");
    }
}

#[test]
fn bounds_of_the_whole_broker_are_dealt_to_the_cores() {
    let settings = Settings { max_client_connections: 10, memory: Size(8 << 30), ..usable() };
    let limits = settings.core_limits(4, 0);
    assert_eq!(limits.connections_max, 3);
    assert_eq!(limits.rings_bytes_max, (2usize << 30) / 100 * 25);
    assert_eq!(limits.frame_bytes_max, 16 << 20);
    let asked = Settings { ring_memory: Size(5 << 20), ..settings };
    assert_eq!(asked.core_limits(4, 0).rings_bytes_max, 5 << 20);
}

#[test]
fn an_ipv4_loopback_mapped_into_ipv6_is_loopback() {
    assert!(is_loopback("[::ffff:127.0.0.1]:1".parse().unwrap()));
    assert!(is_loopback("[::1]:1".parse().unwrap()));
    assert!(!is_loopback("0.0.0.0:1".parse().unwrap()));
}

#[test]
fn the_configuration_page_names_every_setting_and_its_variable() {
    let page = include_str!("../../../../docs/configuration.md");
    for setting in SETTINGS {
        let row = format!("| `{}` | `{}` |", setting.key, setting.env);
        assert!(page.contains(&row), "docs/configuration.md has no row {row}");
    }
}
