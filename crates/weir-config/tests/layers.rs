//! The layers of a configuration, and what is refused, as a user meets them.

use std::path::PathBuf;

use weir_config::settings::all_keys;
use weir_config::{
    Budget, ConfigError, Environment, Loaded, Size, Sources, UpdateMode, ValueOrigin, WarmBudget,
};

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().copied().collect()
}

/// Loads `toml` as the weir.toml of a directory.
fn load(toml: &str, variables: &[(&str, &str)], set: &[&str]) -> Result<Loaded, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("weir.toml"), toml).unwrap();
    let sources = Sources {
        file: None,
        environment: environment(variables),
        set: set.iter().map(ToString::to_string).collect(),
    };
    sources.load(dir.path())
}

fn refusal(toml: &str, variables: &[(&str, &str)], set: &[&str]) -> Vec<String> {
    match load(toml, variables, set) {
        Err(ConfigError::Refused(problems)) => problems
            .iter()
            .map(|problem| {
                let text = problem.to_string();
                // The directory of the test is of no interest.
                text.rsplit_once("/weir.toml")
                    .map_or(text.clone(), |(_, rest)| format!("weir.toml{rest}"))
            })
            .collect(),
        other => panic!("not refused: {other:?}"),
    }
}

fn origin(loaded: &Loaded, path: &str) -> ValueOrigin {
    let key = all_keys().find(|key| key.path() == path).unwrap();
    loaded.origin(key).clone()
}

#[test]
fn without_anything_the_defaults_hold() {
    let loaded = load("", &[], &[]).unwrap();
    assert_eq!(loaded.config.memory.budget, Budget::Percent(25.0));
    assert_eq!(loaded.config.memory.warm, WarmBudget::Auto);
    assert_eq!(loaded.config.mount.prefix.as_path(), PathBuf::from("/weir"));
    assert_eq!(loaded.config.file.directories.0, [PathBuf::from("/tmp")]);
    assert_eq!(origin(&loaded, "memory.budget"), ValueOrigin::Default);
}

#[test]
fn tmpdir_is_the_default_of_the_file_tier() {
    let loaded = load("", &[("TMPDIR", "/nvme/job7")], &[]).unwrap();
    assert_eq!(
        loaded.config.file.directories.0,
        [PathBuf::from("/nvme/job7")]
    );
    let problems = refusal("", &[("TMPDIR", "relative")], &[]);
    assert!(problems[0].contains("file.directories"), "{problems:?}");
}

#[test]
fn each_layer_overrules_the_one_before() {
    let toml = "[memory]\nbudget = \"1G\"\nwarm = \"256M\"\n\n[server]\nmax_clients = 7\n";
    let variables = [
        ("WEIR_MEMORY_WARM", "512M"),
        ("WEIR_SERVER_MAX_CLIENTS", "8"),
    ];
    let loaded = load(toml, &variables, &["server.max_clients=9"]).unwrap();
    assert_eq!(loaded.config.memory.budget, Budget::Bytes(Size(1 << 30)));
    assert_eq!(
        loaded.config.memory.warm,
        WarmBudget::Fixed(Budget::Bytes(Size(512 << 20)))
    );
    assert_eq!(loaded.config.server.max_clients, 9);
    assert!(matches!(
        origin(&loaded, "memory.budget"),
        ValueOrigin::File { line: 2, .. }
    ));
    assert!(
        matches!(origin(&loaded, "memory.warm"), ValueOrigin::Environment { variable } if variable == "WEIR_MEMORY_WARM")
    );
    assert_eq!(
        origin(&loaded, "server.max_clients"),
        ValueOrigin::CommandLine
    );
}

#[test]
fn unknown_names_are_refused_with_line_and_nearest() {
    let toml = "[memory]\nbugdet = \"1G\"\n\n[fiel]\nenabled = true\n[log]\nbudget = 1\n";
    assert_eq!(
        refusal(toml, &[], &[]),
        [
            "weir.toml:2: unknown key `bugdet` in [memory] (did you mean `budget`?)",
            "weir.toml:4: unknown section `fiel` (did you mean `file`?)",
            "weir.toml:7: unknown key `budget` in [log] (did you mean `memory.budget`?)",
        ]
    );
}

#[test]
fn bad_values_are_refused_with_line_and_reason() {
    let toml = "[memory]\nhuge_pages = \"nevr\"\nbudget = \"200%\"\n[file]\nenabled = 3\n";
    assert_eq!(
        refusal(toml, &[], &[]),
        [
            "weir.toml:2: bad value \"nevr\" for memory.huge_pages: expected one of auto, never (did you mean `never`?)",
            "weir.toml:3: bad value \"200%\" for memory.budget: a percentage is above 0 and at most 100",
            "weir.toml:5: bad value 3 for file.enabled: expected true or false, found integer",
        ]
    );
}

#[test]
fn syntax_errors_have_their_line() {
    let problems = refusal("[memory]\nbudget = \n", &[], &[]);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("weir.toml:2: "), "{problems:?}");
}

#[test]
fn a_key_outside_of_any_section_is_refused() {
    let problems = refusal("budget = \"1G\"\nmemory = 1\n", &[], &[]);
    assert_eq!(
        problems,
        [
            "weir.toml:1: `budget` stands outside of any section (did you mean `memory.budget`?)",
            "weir.toml:2: `memory` is a section: write [memory] and its keys below",
        ]
    );
}

#[test]
fn bad_variables_and_options_are_refused_by_name() {
    assert_eq!(
        refusal("", &[("WEIR_SERVER_SPIN_US", "-1")], &["memory.bugdet=1", "nonsense", "logs.level=info"]),
        [
            "environment WEIR_SERVER_SPIN_US: bad value `-1` for server.spin_us: expected a whole number: invalid digit found in string",
            "command line: unknown key `bugdet` in [memory] (did you mean `budget`?)",
            "command line: `nonsense`: expected section.key=value",
            "command line: unknown section `logs` (did you mean `log`?)",
        ]
    );
}

#[test]
fn unknown_variables_warn_and_internal_ones_do_not() {
    let loaded = load(
        "",
        &[("WEIR_MEMORY_BUGDET", "1"), ("WEIR_INSTANCE", "/x")],
        &[],
    )
    .unwrap();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["environment WEIR_MEMORY_BUGDET: no setting of weir; passed over (did you mean `WEIR_MEMORY_BUDGET`?)"]
    );
}

#[test]
fn sizes_are_read_as_dd_reads_them() {
    let cases = [
        ("1048576", 1 << 20),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        ("1.5G", 3 << 29),
        ("2GiB", 2 << 30),
        ("2 GiB", 2 << 30),
        ("2GB", 2_000_000_000),
        ("1T", 1 << 40),
    ];
    for (text, bytes) in cases {
        assert_eq!(Size::parse(text).unwrap(), Size(bytes), "{text}");
    }
    for text in ["", "G", "-1", "1X", "one"] {
        assert!(Size::parse(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_show_exactly() {
    for (bytes, text) in [
        (0, "0"),
        (1500, "1500"),
        (1 << 20, "1MiB"),
        (3 << 29, "1536MiB"),
    ] {
        assert_eq!(Size(bytes).exact(), text);
        assert_eq!(Size::parse(text).unwrap(), Size(bytes));
    }
}

#[test]
fn lists_come_from_toml_and_from_variables() {
    let toml = "[file]\ndirectories = [\"/a\", \"/b/$JOB\"]\n";
    let loaded = load(toml, &[("JOB", "7")], &[]).unwrap();
    assert_eq!(
        loaded.config.file.directories.0,
        [PathBuf::from("/a"), "/b/7".into()]
    );
    let loaded = load(
        toml,
        &[("JOB", "7"), ("WEIR_FILE_DIRECTORIES", "/c:/d")],
        &[],
    )
    .unwrap();
    assert_eq!(
        loaded.config.file.directories.0,
        [PathBuf::from("/c"), "/d".into()]
    );
    let problems = refusal("[file]\ndirectories = []\n", &[], &[]);
    assert!(problems[0].contains("file.enabled = false"), "{problems:?}");
    let problems = refusal("[file]\ndirectories = [\"/a\", \"b\"]\n", &[], &[]);
    assert!(
        problems[0].contains("`b` is not an absolute path"),
        "{problems:?}"
    );
}

#[test]
fn prefixes_that_would_hide_the_system_are_refused() {
    for prefix in ["/", "//", "/proc/x", "weir", "/weir/../etc"] {
        let toml = format!("[mount]\nprefix = \"{prefix}\"\n");
        assert_eq!(refusal(&toml, &[], &[]).len(), 1, "{prefix}");
    }
    let loaded = load("[mount]\nprefix = \"/scratch//weir/./x/\"\n", &[], &[]).unwrap();
    assert_eq!(
        loaded.config.mount.prefix.as_path(),
        PathBuf::from("/scratch/weir/x")
    );
}

#[test]
fn what_is_shown_reads_back_the_same() {
    let toml = "[mount]\nprefix = \"/w\\\"x\"\n[memory]\nbudget = \"12.5%\"\nwarm = 1000\n\
                [file]\ndirectories = [\"/a\", \"/b\"]\n[log]\nfile = \"/var/log/w\"\n";
    let loaded = load(toml, &[], &["run.report=json"]).unwrap();
    let again = Loaded::from_toml(&loaded.toml(), &Environment::default()).unwrap();
    assert_eq!(again.config, loaded.config);
    assert!(loaded.toml().contains("# command line"));
}

#[test]
fn json_has_value_and_origin_of_every_key() {
    let json = load("", &[], &["memory.budget=1G"]).unwrap().json();
    assert_eq!(json["memory.budget"]["origin"]["from"], "command-line");
    assert_eq!(json["memory.budget"]["value"]["bytes"], 1u64 << 30);
    assert_eq!(json["server.max_clients"]["value"], 4096);
    for key in all_keys() {
        assert!(json.get(key.path()).is_some(), "{key:?}");
    }
}

#[test]
fn files_are_found_in_order() {
    let here = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join(".config/weir")).unwrap();
    let user = home.path().join(".config/weir/weir.toml");
    std::fs::write(&user, "[server]\nspin_us = 1\n").unwrap();
    let env = environment(&[("HOME", home.path().to_str().unwrap())]);
    let sources = |file: Option<PathBuf>, environment: Environment| Sources {
        file,
        environment,
        set: vec![],
    };
    let loaded = sources(None, env.clone()).load(here.path()).unwrap();
    assert_eq!(loaded.config.server.spin_us, 1);
    assert_eq!(loaded.file.as_deref(), Some(user.as_path()));

    std::fs::write(here.path().join("weir.toml"), "[server]\nspin_us = 2\n").unwrap();
    let loaded = sources(None, env.clone()).load(here.path()).unwrap();
    assert_eq!(loaded.config.server.spin_us, 2);

    let missing = here.path().join("none.toml");
    let error = sources(Some(missing), env).load(here.path()).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }), "{error}");
}

const RULES: &str = "[[elevate]]\ndirectory = \"/pfs/a\"\nonly = [\"**/*.h5\"]\nskip = \"scratch\"\nkeep = \"mesh\"\n\
                     first = \"ckpt.*\"\nupdate = \"take\"\ntake_from = \"64K\"\ntake_up_to = \"1G\"\n\n[[elevate]]\ndirectory = \"/pfs/$JOB\"\n";

#[test]
fn rules_of_elevated_directories_are_read_and_shown() {
    let set = ["elevate.directories=/pfs/c:/pfs/a"];
    let loaded = load(RULES, &[("JOB", "7")], &set).unwrap();
    let rules = loaded.config.elevated();
    let directories: Vec<_> = rules.iter().map(|rule| rule.directory.to_str()).collect();
    assert_eq!(
        directories,
        [Some("/pfs/a"), Some("/pfs/7"), Some("/pfs/c")]
    );
    assert_eq!(rules[0].only.0, ["**/*.h5"]);
    assert_eq!(rules[0].skip.0, ["scratch"]);
    assert_eq!(rules[0].update, UpdateMode::Take);
    assert_eq!(rules[0].take_from, Size(64 << 10));
    assert_eq!(rules[0].take_up_to, Size(1 << 30));
    assert_eq!(rules[2].update, UpdateMode::Pass);
    assert!(rules[2].only.0.is_empty());

    let shown = loaded.toml();
    assert!(shown.contains("/weir.toml:1\ndirectory = \"/pfs/a\"\nonly = [\"**/*.h5\"]\n"));
    assert!(shown.contains("# command line\ndirectory = \"/pfs/c\"\n"));
    assert!(!shown.contains("[elevate]\n"), "{shown}");
    let again = Loaded::from_toml(&shown, &Environment::default()).unwrap();
    assert_eq!(again.config.elevated(), rules);
    let json = loaded.json();
    assert_eq!(json["elevate"][0]["first"][0], "ckpt.*");
    assert_eq!(json["elevate"][2]["origin"]["from"], "command-line");

    let without = load("", &[], &["elevate.directories=/pfs/c"]).unwrap();
    assert!(without
        .toml()
        .contains("[elevate]\ndirectories = [\"/pfs/c\"]"));
    assert_eq!(without.config.elevated().len(), 1);
}

#[test]
fn bad_rules_are_refused_with_their_lines() {
    let problems = |toml: &str| refusal(toml, &[], &[]);
    assert_eq!(
        problems("[[elevate]]\nonyl = \"a\"\nskip = \"a[\"\nupdate = \"tak\"\n[[elvate]]\nx = 1\n"),
        [
            "weir.toml:1: [[elevate]] has no `directory`",
            "weir.toml:2: unknown key `onyl` in [[elevate]] (did you mean `only`?)",
            "weir.toml:3: bad value \"a[\" for skip in [[elevate]]: not a pattern: unclosed character class; missing ']'",
            "weir.toml:4: bad value \"tak\" for update in [[elevate]]: expected one of pass, take (did you mean `take`?)",
            "weir.toml:5: unknown section `elvate` (did you mean `elevate`?)",
        ]
    );
    let two = |one: &str, other: &str| {
        format!("[[elevate]]\ndirectory = \"{one}\"\n[[elevate]]\ndirectory = \"{other}\"\n")
    };
    assert_eq!(
        problems(&two("/pfs", "/pfs/a")),
        ["weir.toml:3: bad directory in [[elevate]]: /pfs/a and /pfs: one is within the other"]
    );
    assert_eq!(
        problems(&two("/pfs", "/pfs")),
        ["weir.toml:3: bad directory in [[elevate]]: /pfs is named twice"]
    );
    assert_eq!(
        problems("elevate = [1]\n"),
        ["weir.toml:1: a rule of `elevate` is a table: write [[elevate]] and its keys below"]
    );
    let inside = refusal(
        &two("/pfs", "/other"),
        &[],
        &["elevate.directories=/pfs/b", "elevate.only=*.h5"],
    );
    assert_eq!(
        inside,
        ["command line: `elevate.only` is a key of a rule, which only a weir.toml has: write [[elevate]] there"]
    );
    let inside = refusal(&two("/pfs", "/other"), &[], &["elevate.directories=/pfs/b"]);
    assert_eq!(
        inside,
        ["command line: bad directory in [[elevate]]: /pfs/b and /pfs: one is within the other"]
    );
    let sizes = "[[elevate]]\ndirectory = \"/pfs\"\ntake_from = \"2M\"\ntake_up_to = \"1M\"\n\
                 [[prefetch]]\ndirectory = \"/pfs\"\nfrom = \"2M\"\nup_to = \"1M\"\n";
    assert_eq!(
        problems(sizes),
        [
            "weir.toml:1: bad sizes in [[elevate]]: no file is of 2097152 bytes or more and of 1048576 at most",
            "weir.toml:5: bad sizes in [[prefetch]]: no file is of 2097152 bytes or more and of 1048576 at most",
        ]
    );
    let warned = load("", &[("WEIR_ELEVATE_ONLY", "x")], &[]).unwrap();
    let warned = warned.warnings[0].to_string();
    assert!(warned.contains("only a weir.toml has"), "{warned}");
    let both = problems("[elevate]\ndirectories = []\n[[elevate]]\ndirectory = \"/a\"\n");
    assert_eq!(
        both,
        ["weir.toml:3: duplicate key `elevate`: a file has [elevate] or [[elevate]], not both"]
    );
}
