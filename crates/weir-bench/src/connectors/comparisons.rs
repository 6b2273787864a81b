//! The runs of `weir bench --connectors`, and their rows: one place for each promise.

use anyhow::{Context, Result};

use super::programs::{ArrayProgram, ProgramNumbers};
use super::Subject;
use crate::rows::Bar::{AtLeast, AtMost, Reported};
use crate::rows::{Bar, PromiseRow, PromiseTable, Unit};

/// A way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    /// Without weir.
    Outside,
    /// In an instance with these connectors.
    With(&'static str),
    /// In an instance that elevates the directory of the file.
    Elevated,
    /// Without weir, with PnetCDF's own burst buffer driver and its log on tmpfs.
    OwnDriver,
}

impl RunMode {
    /// Its name in rows and errors.
    pub fn name(&self) -> String {
        match self {
            RunMode::Outside => "without weir".to_owned(),
            RunMode::With("none") => "without connectors".to_owned(),
            RunMode::With(connectors) => format!("with {connectors}"),
            RunMode::Elevated => "elevated".to_owned(),
            RunMode::OwnDriver => "PnetCDF's driver".to_owned(),
        }
    }
}

/// A value of a run, and one to hold it against.
#[derive(Clone, Copy, Debug)]
struct RowPlan {
    /// The measurement, in words.
    what: &'static str,
    /// The number, and the index of its run.
    value: (&'static str, usize),
    /// The same of the one beside it, if there is one.
    beside: Option<(&'static str, usize)>,
    unit: Unit,
    bar: Bar,
}

/// A program that is run in several ways.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub subject: Subject,
    pub program: ArrayProgram,
    /// The program and its shape, in words.
    pub what: &'static str,
    /// The words behind the file.
    pub arguments: &'static [&'static str],
    pub runs: &'static [RunMode],
    rows: &'static [RowPlan],
    /// Measured also by `--quick`.
    is_quick: bool,
}

impl Comparison {
    /// True if the program is of several processes.
    pub fn is_parallel(&self) -> bool {
        self.subject != Subject::Overhead
    }

    fn row(&self, plan: &RowPlan) -> PromiseRow {
        let (what, run) = (plan.what, plan.value.1);
        let of_run = self.runs[run].name();
        let (what, beside) = match plan.beside {
            Some((_, other)) if other != run => {
                (format!("{what}, {of_run}"), self.runs[other].name())
            }
            Some((name, _)) => (what.to_owned(), name.trim_end_matches("_s").to_owned()),
            None => (format!("{what}, {of_run}"), String::new()),
        };
        PromiseRow {
            what: format!("{}: {what}", self.what),
            beside,
            unit: plan.unit,
            bar: plan.bar,
        }
    }

    /// Notes why no row is measured.
    pub fn tell_why_not(&self, rows: &mut PromiseTable, why: &str) {
        for plan in self.rows {
            rows.why_not(&self.row(plan), why);
        }
    }

    /// Adds the values of a round; `done` has the numbers of each run.
    pub fn add_to(&self, rows: &mut PromiseTable, done: &[ProgramNumbers]) -> Result<()> {
        let number = |(name, run): (&str, usize)| {
            let found = done.get(run).and_then(|numbers| numbers.get(name));
            let found = found.copied();
            found.with_context(|| format!("{}: the program did not say {name}", self.what))
        };
        let has_no_driver = |(_, run): (&str, usize)| {
            let numbers = done.get(run);
            numbers.is_some_and(|numbers| numbers.contains_key("no_driver"))
        };
        for plan in self.rows {
            if [Some(plan.value), plan.beside]
                .into_iter()
                .flatten()
                .any(has_no_driver)
            {
                rows.why_not(&self.row(plan), NO_DRIVER);
                continue;
            }
            let beside = plan.beside.map(number).transpose()?;
            rows.add(&self.row(plan), number(plan.value)?, beside);
        }
        Ok(())
    }
}

/// The reason of rows that need PnetCDF's burst buffer driver.
const NO_DRIVER: &str = "PnetCDF was built without its burst buffer driver";

/// A time of PnetCDF's driver against the same of another run.
const fn of_driver(what: &'static str, name: &'static str, run: usize, bar: Bar) -> RowPlan {
    RowPlan {
        value: (name, 3),
        ..row(what, name, run, bar)
    }
}

/// A time of the first run against the same of another one.
const fn row(what: &'static str, name: &'static str, run: usize, bar: Bar) -> RowPlan {
    RowPlan {
        what,
        value: (name, 0),
        beside: Some((name, run)),
        unit: Unit::Seconds,
        bar,
    }
}

const fn comparison(
    subject: Subject,
    program: ArrayProgram,
    what: &'static str,
    arguments: &'static [&'static str],
    runs: &'static [RunMode],
    rows: &'static [RowPlan],
) -> Comparison {
    Comparison {
        subject,
        program,
        what,
        arguments,
        runs,
        rows,
        is_quick: false,
    }
}

impl Comparison {
    const fn quick(mut self) -> Comparison {
        self.is_quick = true;
        self
    }
}

const MPIIO: &[RunMode] = &[RunMode::With("none"), RunMode::With("mpiio")];
const HDF5: &[RunMode] = &[RunMode::With("none"), RunMode::With("mpiio,hdf5")];
const PNETCDF: &[RunMode] = &[RunMode::With("none"), RunMode::With("mpiio,pnetcdf")];
const PFS: &[RunMode] = &[
    RunMode::Outside,
    RunMode::With("mpiio,pnetcdf"),
    RunMode::Elevated,
    RunMode::OwnDriver,
];
const HDF5_ELSEWHERE: &[RunMode] = &[RunMode::With("mpiio,hdf5"), RunMode::With("mpiio")];
const START: &[RunMode] = &[RunMode::With("mpiio,pnetcdf,hdf5"), RunMode::With("none")];

const fn strided(write: Bar) -> [RowPlan; 3] {
    [
        row("collective write", "write_s", 1, write),
        row("reads of own blocks", "own_s", 1, AtLeast(1.0)),
        row("reads of another's", "other_s", 1, AtLeast(1.0)),
    ]
}
const STRIDED: &[RowPlan] = &strided(Reported);
const STRIDED_64K: &[RowPlan] = &strided(AtLeast(3.0));
const TRANSFERS: &[RowPlan] = &[
    row("collective write", "write_s", 1, AtLeast(2.0)),
    row("collective read", "read_s", 1, AtLeast(1.0)),
    row("the file made and closed", "file_s", 1, AtLeast(1.0)),
];
const PUTS: &[RowPlan] = &[
    row("puts", "puts_s", 1, AtLeast(1.0)),
    row("whole run", "whole_s", 1, AtLeast(1.0)),
];
/// The upstream driver makes 182,000 such puts a second.
const SMALL_PUTS: &[RowPlan] = &[
    RowPlan {
        what: "puts a second and process",
        value: ("puts_per_s", 1),
        beside: None,
        unit: Unit::Number,
        bar: AtLeast(500_000.0),
    },
    row("whole run", "whole_s", 1, AtLeast(1.0)),
];
const GETS: &[RowPlan] = &[RowPlan {
    what: "gets of what the log has",
    value: ("gets_s", 1),
    beside: Some(("copies_s", 1)),
    unit: Unit::Seconds,
    bar: AtMost(1.0),
}];
const PFS_PUTS: &[RowPlan] = &[
    row("puts to a log", "puts_s", 1, AtLeast(5.0)),
    row("whole run with a log", "whole_s", 1, AtLeast(4.0)),
    row("until the close returns", "whole_s", 2, AtLeast(4.0)),
    of_driver("puts", "puts_s", 1, AtLeast(1.0)),
    of_driver("whole run", "whole_s", 1, AtLeast(1.0)),
    of_driver("until the close returns", "whole_s", 2, AtLeast(1.0)),
];
const WRITES_ELSEWHERE: &[RowPlan] = &[row("a write", "write_s", 1, AtMost(1.01))];
const ALL_ELSEWHERE: &[RowPlan] = &[
    row("a write", "write_s", 1, AtMost(1.01)),
    row("a dataset with an attribute", "object_s", 1, AtMost(1.01)),
];
const STARTS: &[RowPlan] = &[row("start and end", "start_s", 1, AtMost(1.01))];

/// All comparisons, in the order of the report; those of a quick measurement.
pub fn comparisons_of(quick: bool) -> impl Iterator<Item = Comparison> {
    use ArrayProgram::{Collective, Puts, Small, Start, Strided};
    let mpiio =
        |what, arguments, rows| comparison(Subject::Mpiio, Strided, what, arguments, MPIIO, rows);
    let hdf5 =
        |what, arguments| comparison(Subject::Hdf5, Collective, what, arguments, HDF5, TRANSFERS);
    let pnetcdf =
        |what, arguments, rows| comparison(Subject::Pnetcdf, Puts, what, arguments, PNETCDF, rows);
    let pfs = |what, arguments| comparison(Subject::Pfs, Puts, what, arguments, PFS, PFS_PUTS);
    let elsewhere = |what, arguments, rows| {
        comparison(
            Subject::Overhead,
            Small,
            what,
            arguments,
            HDF5_ELSEWHERE,
            rows,
        )
    };
    let all = [
        mpiio("MPI-IO, every nth 4 KiB", &["4096", "2048"], STRIDED),
        mpiio("MPI-IO, every nth 64 KiB", &["65536", "256"], STRIDED_64K).quick(),
        mpiio("MPI-IO, every nth 1 MiB", &["1048576", "16"], STRIDED),
        hdf5(
            "HDF5, bands",
            &["collective", "contiguous", "64", "65536", "4"],
        ),
        hdf5(
            "HDF5, every nth row",
            &["collective", "strided", "64", "65536", "4"],
        )
        .quick(),
        hdf5(
            "HDF5, chunks",
            &["collective", "chunked", "64", "65536", "4"],
        ),
        pnetcdf("PnetCDF, 1 KiB puts", &["small"], SMALL_PUTS),
        pnetcdf("PnetCDF, FLASH", &["flash"], PUTS).quick(),
        pnetcdf("PnetCDF, BTIO", &["btio"], PUTS),
        pnetcdf("PnetCDF, BTIO nonblocking", &["btio-nonblocking"], PUTS),
        pnetcdf("PnetCDF, WRF", &["wrf"], PUTS),
        pnetcdf("PnetCDF, 1 MiB", &["gets"], GETS),
        pfs("FLASH to the PFS", &["flash"]).quick(),
        pfs("BTIO to the PFS", &["btio"]),
        pfs("BTIO nonblocking to the PFS", &["btio-nonblocking"]),
        comparison(
            Subject::Overhead,
            Start,
            "a program without MPI",
            &[],
            START,
            STARTS,
        )
        .quick(),
        elsewhere("HDF5 on tmpfs, 4 KiB", &["4096"], ALL_ELSEWHERE),
        elsewhere("HDF5 on tmpfs, 1 MiB", &["1048576"], WRITES_ELSEWHERE),
    ];
    all.into_iter()
        .filter(move |comparison| comparison.is_quick || !quick)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_have_names_of_their_own_and_runs_that_exist() {
        let mut seen = BTreeSet::new();
        for comparison in comparisons_of(false) {
            let numbers = |_: &RunMode| {
                let names = [
                    "write_s", "own_s", "other_s", "read_s", "file_s", "puts_s", "whole_s",
                ];
                let more = ["puts_per_s", "gets_s", "copies_s", "object_s", "start_s"];
                let all = names.into_iter().chain(more);
                all.map(|name| (name.to_owned(), 1.0))
                    .collect::<ProgramNumbers>()
            };
            let done: Vec<ProgramNumbers> = comparison.runs.iter().map(numbers).collect();
            let mut rows = PromiseTable::default();
            comparison.add_to(&mut rows, &done).unwrap();
            for verdict in rows.verdicts() {
                assert!(seen.insert(verdict.what.clone()), "{}", verdict.what);
                assert!(verdict.ratio.is_some() || verdict.beside.is_empty());
            }
            let no_driver = ProgramNumbers::from([("no_driver".to_owned(), 1.0)]);
            let without = vec![no_driver; comparison.runs.len()];
            let mut reasons = PromiseTable::default();
            comparison.add_to(&mut reasons, &without).unwrap();
            assert!(reasons
                .verdicts()
                .iter()
                .all(|row| row.why_not == Some(NO_DRIVER.to_owned())));
            let none = vec![ProgramNumbers::new(); comparison.runs.len()];
            let refused = comparison.add_to(&mut rows, &none).unwrap_err();
            assert!(refused.to_string().contains("did not say"), "{refused}");
        }
        let quick: Vec<Subject> = comparisons_of(true).map(|c| c.subject).collect();
        assert_eq!(quick.len(), 5, "one of each subject: {quick:?}");
    }
}
