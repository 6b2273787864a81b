//! Putting the client into a command: which library, and the environment that carries it.
//!
//! `LD_PRELOAD` names our library first: an allocator preloaded before it would call into it
//! while it is being set up. What the user preloads stays, after it. The client library loads the
//! connectors of MPI-IO and PnetCDF itself, when a program first calls one. The environment is
//! inherited, so mpiexec and mpirun carry it to their processes on this node by themselves, and
//! srun and MPICH's also to those on other nodes, where the run directory has the same path.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use weir_config::{Connector, ConnectorChoice, Connectors, Environment, Loaded, PnetCdf};
use weir_core::proto::PREFIX_LINK;
use weir_instance::directories::Label;
use weir_instance::errln;
use weir_instance::roster::ROSTER;

use crate::linked::starts_parallel_hdf5;

/// The file name of the client library.
pub const LIBRARY: &str = "libweir_preload.so";

/// How the file names of all our libraries begin.
const OURS: &[u8] = b"libweir_";

const ASAN_ORDER: &str = "verify_asan_link_order=0";

/// The variable that names HDF5's connector, and our value: passed on to the native one.
const HDF5_CONNECTOR: &str = "HDF5_VOL_CONNECTOR";
const HDF5_OURS: &str = "weir under_vol=0;under_info={}";
/// The variable with the directories of HDF5's plug-ins. Set, it replaces those that were built into HDF5.
const HDF5_PLUGINS: &str = "HDF5_PLUGIN_PATH";
/// The directories that are built into most of them. Debian's are `DEBIAN_HDF5/*/plugins`.
const USUAL_PLUGINS: [&str; 2] = ["/usr/local/hdf5/lib/plugin", "/usr/local/lib/plugin"];
const DEBIAN_HDF5: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/hdf5",
    "/usr/lib/aarch64-linux-gnu/hdf5",
];

/// The variable that names the connectors that the client library loads, separated by commas.
const CONNECTORS: &str = "WEIR_CONNECTORS";

/// Lists of variables that Open MPI's mpiexec passes to other nodes (Open MPI 4).
const OPENMPI_LIST: &str = "OMPI_MCA_mca_base_env_list";
const OPENMPI_SECOND_LIST: &str = "OMPI_MCA_mca_base_env_list_internal";

/// The libraries that programs get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedLibraries {
    /// The client library.
    client: PathBuf,
    /// The connectors beside it, which it loads itself.
    connectors: Vec<Connector>,
    /// The directory of HDF5's connector, which HDF5 loads itself. Nothing else is in it, for HDF5 loads all libraries there.
    hdf5_plugins: Option<PathBuf>,
}

impl InjectedLibraries {
    /// The client library without connectors.
    pub fn client_alone(library: PathBuf) -> InjectedLibraries {
        InjectedLibraries {
            client: library,
            connectors: Vec::new(),
            hdf5_plugins: None,
        }
    }
}

/// Finds the client library: `WEIR_PRELOAD`, else beside `program`, else `../lib/weir` from it.
pub fn find_library(env: &Environment, program: &Path) -> Result<PathBuf> {
    if let Some(named) = env.get("WEIR_PRELOAD") {
        let path = PathBuf::from(named);
        ensure!(path.is_file(), "WEIR_PRELOAD: {named} is no file");
        return std::path::absolute(path).context("WEIR_PRELOAD");
    }
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [
        beside.join(LIBRARY),
        beside.join("../lib/weir").join(LIBRARY),
    ];
    match places.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => bail!(
            "the client library is not found: {LIBRARY} is neither beside {} nor in ../lib/weir; \
             WEIR_PRELOAD may name it",
            program.display()
        ),
    }
}

/// The path of a connector, beside the client library; that of HDF5 is in a directory of its own there.
pub fn connector_beside(client: &Path, connector: Connector) -> PathBuf {
    let file = format!("libweir_{}.so", connector.name());
    match connector {
        Connector::MpiIo | Connector::PnetCdf => client.with_file_name(file),
        Connector::Hdf5 => client.with_file_name(connector.name()).join(file),
    }
}

/// The client library and the connectors beside it that a command gets.
pub fn find_libraries(
    env: &Environment,
    program: &Path,
    wanted: &Connectors,
    command: &[OsString],
) -> Result<InjectedLibraries> {
    let client = find_library(env, program)?;
    let mut libraries = InjectedLibraries::client_alone(client.clone());
    for connector in Connector::ALL {
        let path = connector_beside(&client, connector);
        let is_wanted = match wanted.choice(connector) {
            ConnectorChoice::Required => true,
            ConnectorChoice::Excluded => false,
            ConnectorChoice::Installed => path.is_file(),
            ConnectorChoice::Linked => path.is_file() && starts_parallel_hdf5(command),
        };
        if !is_wanted {
            continue;
        }
        ensure!(
            path.is_file(),
            "the connector {} is not installed: {} is no file",
            connector.name(),
            path.display()
        );
        match connector {
            Connector::MpiIo | Connector::PnetCdf => libraries.connectors.push(connector),
            Connector::Hdf5 => libraries.hdf5_plugins = path.parent().map(Path::to_path_buf),
        }
    }
    Ok(libraries)
}

/// `LD_PRELOAD` with `libraries` put before what `inherited` names.
///
/// The loader splits the list at spaces and colons (ld.so(8)), so a path with either cannot be
/// in it.
pub fn preload_list(libraries: &[PathBuf], inherited: Option<&str>) -> Result<String> {
    let mut list = Vec::new();
    for library in libraries {
        let library = library
            .to_str()
            .context("the path of the client library is not UTF-8")?;
        ensure!(
            !library.contains([' ', ':']),
            "{library}: LD_PRELOAD cannot hold a path with a space or a colon; \
             WEIR_PRELOAD may name a copy elsewhere"
        );
        list.push(library);
    }
    let is_ours = |item: &&str| {
        let name = Path::new(item).file_name();
        name.is_some_and(|name| name.as_encoded_bytes().starts_with(OURS))
    };
    let others = inherited.unwrap_or_default().split([' ', ':']);
    list.extend(others.filter(|item| !item.is_empty() && !is_ours(item)));
    Ok(list.join(":"))
}

/// The variables that a program needs to find the instance in `run_dir`.
pub fn variables(
    run_dir: &Path,
    libraries: &InjectedLibraries,
    env: &Environment,
) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![
        ("WEIR_INSTANCE", run_dir.into()),
        (
            // So that what is below it is not taken for the kernel's once the instance has ended.
            "WEIR_AT",
            std::fs::read_link(run_dir.join(PREFIX_LINK)).map_or_else(|_| "".into(), Into::into),
        ),
        (
            "LD_PRELOAD",
            preload_list(
                std::slice::from_ref(&libraries.client),
                env.get("LD_PRELOAD"),
            )?
            .into(),
        ),
        ("ASAN_OPTIONS", asan_options(env.get("ASAN_OPTIONS")).into()),
    ];
    let connectors = libraries.connectors.iter().map(|it| it.name());
    // Also if there are none: a run around this one may have some.
    variables.push((CONNECTORS, connectors.collect::<Vec<_>>().join(",").into()));
    variables.extend(for_connectors(run_dir, libraries));
    if let Some(plugins) = &libraries.hdf5_plugins {
        variables.extend(hdf5_variables(plugins, env)?);
    }
    if run_dir.join(ROSTER).exists() {
        let ours = variables.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        variables.push(for_openmpi(&ours, env));
    }
    Ok(variables)
}

/// The settings of connectors, which are in processes that read no configuration: those that the instance was started
/// with, sizes in bytes.
fn for_connectors(run_dir: &Path, libraries: &InjectedLibraries) -> Vec<(&'static str, OsString)> {
    let is_there = libraries.connectors.contains(&Connector::PnetCdf);
    let Some(label) = Label::read(run_dir).filter(|_| is_there) else {
        return Vec::new();
    };
    let Ok(loaded) = Loaded::from_toml(&label.settings, &Environment::default()) else {
        return Vec::new();
    };
    // Without `..`, so that a new setting does not compile before it is passed on.
    let PnetCdf {
        log,
        files,
        flush,
        budget,
        buffer,
    } = loaded.config.pnetcdf;
    vec![
        ("WEIR_PNETCDF_LOG", log.word().into()),
        ("WEIR_PNETCDF_FILES", files.word().into()),
        ("WEIR_PNETCDF_FLUSH", flush.word().into()),
        ("WEIR_PNETCDF_BUDGET", budget.0.to_string().into()),
        ("WEIR_PNETCDF_BUFFER", buffer.0.to_string().into()),
    ]
}

/// The variables by which HDF5 finds its connector. One that the user has named stays: then there is none of ours.
fn hdf5_variables(plugins: &Path, env: &Environment) -> Result<Vec<(&'static str, OsString)>> {
    let named = env.get(HDF5_CONNECTOR).filter(|named| !named.is_empty());
    if let Some(named) = named.filter(|named| *named != HDF5_OURS) {
        errln!("weir: {HDF5_CONNECTOR}={named} stays: HDF5 does without weir's connector");
        return Ok(Vec::new());
    }
    let plugins = plugins
        .to_str()
        .context("the path of the HDF5 connector is not UTF-8")?;
    ensure!(
        !plugins.contains(':'),
        "{plugins}: {HDF5_PLUGINS} cannot hold a path with a colon; WEIR_PRELOAD may name a copy \
         elsewhere, --connectors mpiio does without"
    );
    let others = match env.get(HDF5_PLUGINS) {
        Some(theirs) => theirs.to_owned(),
        None => usual_plugins(),
    };
    let others = others.split(':');
    let others = others.filter(|dir| !dir.is_empty() && *dir != plugins);
    let list: Vec<&str> = std::iter::once(plugins).chain(others).collect();
    Ok(vec![
        (HDF5_CONNECTOR, HDF5_OURS.into()),
        (HDF5_PLUGINS, list.join(":").into()),
    ])
}

/// The directories in which HDF5 looks for plug-ins by itself, if they are there.
fn usual_plugins() -> String {
    let debian = DEBIAN_HDF5.into_iter().flat_map(std::fs::read_dir);
    let debian = debian.flatten().flatten();
    let mut dirs: Vec<PathBuf> = USUAL_PLUGINS.map(PathBuf::from).into();
    dirs.extend(debian.map(|build| build.path().join("plugins")));
    dirs.retain(|dir| dir.is_dir());
    let dirs: Vec<&str> = dirs.iter().filter_map(|dir| dir.to_str()).collect();
    dirs.join(":")
}

/// AddressSanitizer's options, with the one that lets its runtime start behind our library: it wants to
/// be the first, and so do we. What the user says of that stays.
fn asan_options(inherited: Option<&str>) -> String {
    match inherited {
        None => ASAN_ORDER.to_owned(),
        Some(options) if options.contains("verify_asan_link_order") => options.to_owned(),
        Some(options) => format!("{options}:{ASAN_ORDER}"),
    }
}

/// The variable that makes Open MPI pass ours on to other nodes; by itself it passes on none.
///
/// It refuses `-x` beside its parameter `mca_base_env_list`, and has a second parameter for lists
/// that come from its own files, which it takes beside either. A list of the user's in the
/// environment is extended.
fn for_openmpi(ours: &[&str], env: &Environment) -> (&'static str, OsString) {
    let ours = ours.join(";");
    match env.get(OPENMPI_LIST) {
        Some(list) => (OPENMPI_LIST, format!("{list};{ours}").into()),
        None => (OPENMPI_SECOND_LIST, ours.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_comes_first_and_once() {
        let one = ["/x/libweir_preload.so".into()];
        let list = |inherited| preload_list(&one, inherited).unwrap();
        assert_eq!(list(None), "/x/libweir_preload.so");
        let two = [one[0].clone(), "/x/libweir_mpiio.so".into()];
        let inherited = Some("/old/libweir_mpiio.so:/old/libweir_preload.so:a.so");
        let both = preload_list(&two, inherited).unwrap();
        assert_eq!(both, "/x/libweir_preload.so:/x/libweir_mpiio.so:a.so");
        assert_eq!(
            list(Some("a.so b.so:c.so")),
            "/x/libweir_preload.so:a.so:b.so:c.so"
        );
        assert_eq!(
            list(Some("/old/libweir_preload.so:a.so")),
            "/x/libweir_preload.so:a.so"
        );
        assert!(preload_list(&["/a b/libweir_preload.so".into()], None).is_err());
    }

    #[test]
    fn connectors_are_beside_the_client_library() {
        let dir = tempfile::tempdir().unwrap();
        let (program, none) = (dir.path().join("weir"), Environment::default());
        let found = |wanted: &Connectors| find_libraries(&none, &program, wanted, &["sh".into()]);
        let (library, connector) = (
            dir.path().join(LIBRARY),
            dir.path().join("libweir_mpiio.so"),
        );
        std::fs::write(&library, "").unwrap();
        let named = Connectors::Named(vec![Connector::MpiIo]);
        let alone = InjectedLibraries::client_alone(library.clone());
        assert_eq!(found(&Connectors::Auto).unwrap(), alone);
        assert!(found(&named)
            .unwrap_err()
            .to_string()
            .contains("not installed"));
        std::fs::write(&connector, "").unwrap();
        let both = InjectedLibraries {
            connectors: vec![Connector::MpiIo],
            ..alone.clone()
        };
        assert_eq!(found(&Connectors::Auto).unwrap(), both);
        assert_eq!(found(&named).unwrap(), both);
        assert_eq!(found(&Connectors::Named(Vec::new())).unwrap(), alone);
        let plugins = dir.path().join("hdf5");
        std::fs::create_dir(&plugins).unwrap();
        std::fs::write(plugins.join("libweir_hdf5.so"), "").unwrap();
        assert_eq!(found(&named).unwrap(), both);
        let all = InjectedLibraries {
            hdf5_plugins: Some(plugins),
            ..both
        };
        assert_eq!(found(&Connectors::All).unwrap(), all);
        assert_ne!(found(&Connectors::Auto).unwrap(), all);
    }

    #[test]
    fn hdf5_finds_the_connector_unless_the_user_has_one() {
        let set = |env: &[(&'static str, &'static str)]| {
            let env: Environment = env.iter().copied().collect();
            let variables = hdf5_variables(Path::new("/x/hdf5"), &env).unwrap();
            variables
                .into_iter()
                .map(|(_, value)| value.into_string().unwrap())
                .collect()
        };
        let none: Vec<String> = set(&[]);
        assert_eq!(none[0], HDF5_OURS);
        assert!(none[1].starts_with("/x/hdf5"));
        assert_eq!(set(&[(HDF5_CONNECTOR, "async")]), [""; 0]);
        // Those of a run around this one.
        let nested: Vec<String> = set(&[(HDF5_CONNECTOR, HDF5_OURS), (HDF5_PLUGINS, "/x/hdf5:/p")]);
        assert_eq!(nested, [HDF5_OURS, "/x/hdf5:/p"]);
    }

    #[test]
    fn openmpi_is_told_without_disturbing_what_the_user_tells_it() {
        let dir = tempfile::tempdir().unwrap();
        let library = InjectedLibraries::client_alone("/x/libweir_preload.so".into());
        let names = |env: &Environment| -> Vec<&str> {
            let variables = variables(dir.path(), &library, env).unwrap();
            variables.into_iter().map(|(name, _)| name).collect()
        };
        let none = Environment::default();
        assert_eq!(
            names(&none),
            [
                "WEIR_INSTANCE",
                "WEIR_AT",
                "LD_PRELOAD",
                "ASAN_OPTIONS",
                CONNECTORS
            ]
        );
        std::fs::write(dir.path().join(ROSTER), "").unwrap();
        assert_eq!(names(&none)[5..], [OPENMPI_SECOND_LIST]);
        let env: Environment = [(OPENMPI_LIST, "A=1")].into_iter().collect();
        let told = for_openmpi(&["LD_PRELOAD", "WEIR_AT"], &env);
        assert_eq!(told, (OPENMPI_LIST, "A=1;LD_PRELOAD;WEIR_AT".into()));
    }

    #[test]
    fn options_of_asan_stay_as_the_user_has_them() {
        let cases = [
            (None, ASAN_ORDER),
            (Some("a=1"), "a=1:verify_asan_link_order=0"),
            (Some("verify_asan_link_order=1"), "verify_asan_link_order=1"),
        ];
        for (inherited, wanted) in cases {
            assert_eq!(asan_options(inherited), wanted);
        }
    }

    #[test]
    fn the_library_is_looked_for_near_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let none = Environment::default();
        let program = dir.path().join("bin/weir");
        std::fs::create_dir_all(dir.path().join("bin")).unwrap();
        assert!(find_library(&none, &program).is_err());

        std::fs::create_dir_all(dir.path().join("lib/weir")).unwrap();
        std::fs::write(dir.path().join("lib/weir").join(LIBRARY), "").unwrap();
        assert!(find_library(&none, &program).unwrap().ends_with(LIBRARY));

        let beside = dir.path().join("bin").join(LIBRARY);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find_library(&none, &program).unwrap(), beside);

        let named = dir.path().join("elsewhere.so");
        let env: Environment = [("WEIR_PRELOAD", named.to_str().unwrap())]
            .into_iter()
            .collect();
        assert!(find_library(&env, &program).is_err());
        std::fs::write(&named, "").unwrap();
        assert_eq!(find_library(&env, &program).unwrap(), named);
    }
}
