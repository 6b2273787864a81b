//! Putting the client into a command: which library, and the environment that carries it.
//!
//! `LD_PRELOAD` names our library first: an allocator preloaded before it would call into it
//! while it is being set up. What the user preloads stays, after it. The environment is
//! inherited, so mpiexec and mpirun carry it to their processes on this node by themselves, and
//! srun and MPICH's also to those on other nodes, where the run directory has the same path.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use weir_config::{Connector, Connectors, Environment, Loaded};
use weir_core::proto::PREFIX_LINK;
use weir_instance::directories::Label;
use weir_instance::roster::ROSTER;

/// The file name of the client library.
pub const LIBRARY: &str = "libweir_preload.so";

/// How the file names of all our libraries begin.
const OURS: &[u8] = b"libweir_";

const ASAN_ORDER: &str = "verify_asan_link_order=0";

/// Lists of variables that Open MPI's mpiexec passes to other nodes (Open MPI 4).
const OPENMPI_LIST: &str = "OMPI_MCA_mca_base_env_list";
const OPENMPI_SECOND_LIST: &str = "OMPI_MCA_mca_base_env_list_internal";

/// The settings of the connector of PnetCDF.
const PNETCDF_VARIABLES: [&str; 4] = [
    "WEIR_PNETCDF_LOG",
    "WEIR_PNETCDF_FILES",
    "WEIR_PNETCDF_BUDGET",
    "WEIR_PNETCDF_BUFFER",
];

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

/// The client library and the connectors beside it, in the order in which they are loaded.
pub fn find_libraries(
    env: &Environment,
    program: &Path,
    wanted: &Connectors,
) -> Result<Vec<PathBuf>> {
    let mut libraries = vec![find_library(env, program)?];
    for connector in Connector::ALL {
        let path = libraries[0].with_file_name(format!("libweir_{}.so", connector.name()));
        let is_wanted = match wanted {
            Connectors::Auto => path.is_file(),
            Connectors::Named(named) => named.contains(&connector),
        };
        if is_wanted {
            ensure!(
                path.is_file(),
                "the connector {} is not installed: {} is no file",
                connector.name(),
                path.display()
            );
            libraries.push(path);
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
    libraries: &[PathBuf],
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
            preload_list(libraries, env.get("LD_PRELOAD"))?.into(),
        ),
        ("ASAN_OPTIONS", asan_options(env.get("ASAN_OPTIONS")).into()),
    ];
    variables.extend(for_connectors(run_dir, libraries));
    if run_dir.join(ROSTER).exists() {
        variables.push(for_openmpi(env));
    }
    Ok(variables)
}

/// The settings of connectors, which are in processes that read no configuration: those that the instance was started
/// with, sizes in bytes.
fn for_connectors(run_dir: &Path, libraries: &[PathBuf]) -> Vec<(&'static str, OsString)> {
    let pnetcdf = format!("libweir_{}.so", Connector::PnetCdf.name());
    let is_there = libraries.iter().any(|path| path.ends_with(&pnetcdf));
    let Some(label) = Label::read(run_dir).filter(|_| is_there) else {
        return Vec::new();
    };
    let Ok(loaded) = Loaded::from_toml(&label.settings, &Environment::default()) else {
        return Vec::new();
    };
    let settings = loaded.config.pnetcdf;
    let values: [OsString; 4] = [
        settings.log.word().into(),
        settings.files.word().into(),
        settings.budget.0.to_string().into(),
        settings.buffer.0.to_string().into(),
    ];
    PNETCDF_VARIABLES.into_iter().zip(values).collect()
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
fn for_openmpi(env: &Environment) -> (&'static str, OsString) {
    let ours = ["LD_PRELOAD", "WEIR_INSTANCE", "WEIR_AT", "ASAN_OPTIONS"];
    let ours = [&ours[..], &PNETCDF_VARIABLES].concat().join(";");
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
        let found = |wanted: &Connectors| find_libraries(&none, &program, wanted);
        let (library, connector) = (
            dir.path().join(LIBRARY),
            dir.path().join("libweir_mpiio.so"),
        );
        std::fs::write(&library, "").unwrap();
        let named = Connectors::Named(vec![Connector::MpiIo]);
        assert_eq!(
            found(&Connectors::Auto).unwrap(),
            std::slice::from_ref(&library)
        );
        assert!(found(&named)
            .unwrap_err()
            .to_string()
            .contains("not installed"));
        std::fs::write(&connector, "").unwrap();
        let both = [library.clone(), connector];
        assert_eq!(found(&Connectors::Auto).unwrap(), both);
        assert_eq!(found(&named).unwrap(), both);
        assert_eq!(found(&Connectors::Named(Vec::new())).unwrap(), [library]);
    }

    #[test]
    fn openmpi_is_told_without_disturbing_what_the_user_tells_it() {
        let dir = tempfile::tempdir().unwrap();
        let library = ["/x/libweir_preload.so".into()];
        let names = |env: &Environment| -> Vec<&str> {
            let variables = variables(dir.path(), &library, env).unwrap();
            variables.into_iter().map(|(name, _)| name).collect()
        };
        let none = Environment::default();
        assert_eq!(
            names(&none),
            ["WEIR_INSTANCE", "WEIR_AT", "LD_PRELOAD", "ASAN_OPTIONS"]
        );
        std::fs::write(dir.path().join(ROSTER), "").unwrap();
        assert_eq!(names(&none)[4..], [OPENMPI_SECOND_LIST]);
        let env: Environment = [(OPENMPI_LIST, "A=1")].into_iter().collect();
        let told = for_openmpi(&env);
        assert_eq!(told.0, OPENMPI_LIST);
        let list = told.1.into_string().unwrap();
        assert!(list.starts_with("A=1;LD_PRELOAD;WEIR_INSTANCE;WEIR_AT;ASAN_OPTIONS;WEIR_PNETCDF_"));
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
