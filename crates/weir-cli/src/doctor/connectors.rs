//! Checks of the connectors: which ones programs get, and the reason if one has no effect.
//!
//! A table has the traits of each connector; one without traits is still looked for and loaded.

use std::path::Path;

use weir_config::{all_keys, Connector, ConnectorChoice};

use super::finding::{Finding, MachineReport};
use super::preload::load;
use crate::inject;
use crate::linked::{self, libraries_of, LinkedLibraries};

const CHECK: &str = "connectors";

/// The knowledge of a connector.
struct ConnectorTraits {
    /// As in settings.
    name: &'static str,
    /// The beginnings of the names of the libraries whose functions it wraps.
    wraps: &'static [&'static str],
    /// A variable of the user's that it gives way to, and the consequence.
    yields_to: Option<(&'static str, &'static str)>,
}

const TRAITS: &[ConnectorTraits] = &[
    ConnectorTraits {
        name: "mpiio",
        wraps: linked::MPI,
        yields_to: Some((
            "ROMIO_HINTS",
            "its hints are for all files, so all are left alone",
        )),
    },
    ConnectorTraits {
        name: "hdf5",
        wraps: linked::HDF5,
        yields_to: Some(("HDF5_VOL_CONNECTOR", "HDF5 uses that one")),
    },
    ConnectorTraits {
        name: "pnetcdf",
        wraps: &["libpnetcdf."],
        yields_to: None,
    },
];

/// `program`: the one that is to be run, if it is known.
pub(super) fn check(examined: &MachineReport<'_>, program: Option<&Path>) -> Vec<Finding> {
    let own = std::env::current_exe().unwrap_or_default();
    let Ok(client) = inject::find_library(examined.env, &own) else {
        // Another check says so.
        return Vec::new();
    };
    let linked = program.map(libraries_of);
    let examine = |connector: Connector| {
        let library = inject::connector_beside(&client, connector);
        Examined {
            report: examined,
            name: connector.name(),
            choice: examined.loaded.config.run.connectors.choice(connector),
            library: &library,
            client: &client,
            linked: linked.as_ref(),
        }
        .finding()
    };
    Connector::ALL.into_iter().map(examine).collect()
}

/// A connector, with all that decides about it.
struct Examined<'a> {
    report: &'a MachineReport<'a>,
    name: &'static str,
    choice: ConnectorChoice,
    library: &'a Path,
    client: &'a Path,
    linked: Option<&'a LinkedLibraries>,
}

impl Examined<'_> {
    fn finding(&self) -> Finding {
        let name = self.name;
        if self.choice == ConnectorChoice::Excluded {
            let origin = self.origin();
            return Finding::ok(
                CHECK,
                format!("{name}: run.connectors ({origin}) leaves it out"),
            );
        }
        let library = self.library.display();
        if !self.library.is_file() {
            let found = format!("{name}: not installed, {library} is no file");
            let remedy = "build or install it: make";
            return match self.choice {
                // weir run would refuse.
                ConnectorChoice::Required => Finding::fail(CHECK, found, remedy),
                _ => Finding::warn(CHECK, found, remedy),
            };
        }
        if let Err(why) = load(&[self.client.to_owned(), self.library.to_owned()]) {
            let found = format!("{name}: {library}: {why}");
            return Finding::fail(
                CHECK,
                found,
                "build it for this system: make; or leave it out: --connectors none, or a list without it",
            );
        }
        let traits = TRAITS.iter().find(|traits| traits.name == name);
        self.applies(traits)
    }

    /// The finding for one that is loaded.
    fn applies(&self, traits: Option<&ConnectorTraits>) -> Finding {
        let (name, library) = (self.name, self.library.display());
        let variable = traits.and_then(|traits| traits.yields_to);
        let is_set = |variable: &str| {
            self.report
                .env
                .get(variable)
                .is_some_and(|it| !it.is_empty())
        };
        if let Some((variable, so)) = variable.filter(|(variable, _)| is_set(variable)) {
            return Finding::warn(
                CHECK,
                format!("{name}: {variable} is set: {so}"),
                format!("unset {variable}, unless you want that"),
            );
        }
        let mut found = format!("{name}: {library}");
        if self.choice == ConnectorChoice::Linked {
            found = format!("{found}; for commands that start a program linked with HDF5 and MPI; --connectors all: for all");
        }
        if let (Some(linked), Some(traits)) = (self.linked, traits) {
            found = format!("{found}; {}", linked_in_words(linked, traits, self.choice));
        }
        Finding::ok(CHECK, found)
    }

    /// The place that says which connectors programs get.
    fn origin(&self) -> String {
        let mut keys = all_keys();
        let key = keys.find(|key| key.path() == "run.connectors");
        key.map_or_else(String::new, |key| {
            self.report.loaded.origin(key).to_string()
        })
    }
}

fn linked_in_words(
    linked: &LinkedLibraries,
    traits: &ConnectorTraits,
    choice: ConnectorChoice,
) -> String {
    let names = match linked {
        Ok(names) => names,
        Err(why) => return format!("the libraries of the program are not known: {why}"),
    };
    let Some(name) = linked::find_library(names, traits.wraps) else {
        return "the program is not linked with what it wraps, and may load that later, as Python does, or start another one, \
                as mpiexec does"
            .to_owned();
    };
    let obstacle = match traits.name {
        "hdf5" => hdf5_obstacle(names, name, choice),
        _ => None,
    };
    match obstacle {
        Some(obstacle) => format!("it does nothing: the program has {name}, {obstacle}"),
        None => format!("the program has {name}"),
    }
}

/// The reason why the connector of HDF5 does nothing for a program with this HDF5, if there is one.
fn hdf5_obstacle(names: &[String], hdf5: &str, choice: ConnectorChoice) -> Option<&'static str> {
    if linked::has_renamed_hdf5(names) {
        return Some("and an HDF5 whose functions have other names");
    }
    let is_for_parallel = choice == ConnectorChoice::Linked;
    let is_left_out = is_for_parallel && linked::find_library(names, linked::MPI).is_none();
    linked::old_hdf5(hdf5).or(is_left_out.then_some("and no MPI: --connectors all"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;
    use weir_config::{Environment, Machine, Sources};

    fn findings(variables: &[(&str, &str)], set: &str, program: Option<&Path>) -> Vec<Finding> {
        let env: Environment = variables.iter().copied().collect();
        let mut sources = Sources::default();
        sources.set.push(set.to_owned());
        let loaded = sources.load("/".as_ref()).unwrap();
        let examined = MachineReport {
            loaded: &loaded,
            env: &env,
            machine: Machine::default(),
        };
        check(&examined, program)
    }

    #[test]
    fn each_connector_says_why_it_does_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // The C library can be preloaded, whatever it is named.
        let real = Path::new("/proc/self/maps");
        let maps = std::fs::read_to_string(real).unwrap();
        let libc = maps.lines().find_map(|line| {
            let path = line.split_whitespace().nth(5)?;
            path.contains("libgcc_s").then(|| path.to_owned())
        });
        let libc = libc.expect("a library that this test is linked with");
        let client = dir.path().join(inject::LIBRARY);
        std::os::unix::fs::symlink(&libc, &client).unwrap();
        let client = client.to_str().unwrap().to_owned();
        let named = ("WEIR_PRELOAD", client.as_str());
        let first = |variables: &[(&str, &str)], set| {
            let finding = findings(variables, set, None).remove(0);
            (finding.level, finding.found)
        };
        let (level, found) = first(&[named], "run.connectors=auto");
        assert!(
            level == Level::Warn && found.contains("mpiio: not installed"),
            "{found}"
        );
        assert_eq!(first(&[named], "run.connectors=mpiio").0, Level::Fail);
        let (level, found) = first(&[named], "run.connectors=none");
        assert!(
            level == Level::Ok && found.contains("leaves it out"),
            "{found}"
        );
        std::os::unix::fs::symlink(&libc, dir.path().join("libweir_mpiio.so")).unwrap();
        let (level, found) = first(&[named], "run.connectors=auto");
        assert!(
            level == Level::Ok && found.ends_with("libweir_mpiio.so"),
            "{found}"
        );
        let (level, found) = first(&[named, ("ROMIO_HINTS", "/x")], "run.connectors=auto");
        assert!(
            level == Level::Warn && found.contains("left alone"),
            "{found}"
        );
        let sh = findings(&[named], "run.connectors=auto", Some(Path::new("sh"))).remove(0);
        assert!(sh.found.contains("is not linked with"), "{}", sh.found);
    }

    #[test]
    fn a_linked_library_is_named() {
        let [mpiio, hdf5, _] = TRAITS else {
            panic!("another connector");
        };
        let words = |names: &[&str], traits| {
            let names = names.iter().map(|name| (*name).to_owned());
            linked_in_words(&Ok(names.collect()), traits, ConnectorChoice::Linked)
        };
        let (mpi, new) = ("libmpi.so.40", "libhdf5.so.310.5.0");
        assert_eq!(words(&[mpi], mpiio), "the program has libmpi.so.40");
        assert!(words(&[new], mpiio).contains("is not linked with"));
        assert!(words(&[mpi, new], hdf5).starts_with("the program has libhdf5.so"));
        for (names, why) in [
            (&[mpi, "libhdf5_openmpi.so.103"][..], "before 1.12"),
            (&[new], "no MPI"),
            (&[mpi, new, "libvtkhdf5.so.9"], "other names"),
        ] {
            let found = words(names, hdf5);
            assert!(
                found.starts_with("it does nothing") && found.contains(why),
                "{found}"
            );
        }
    }
}
