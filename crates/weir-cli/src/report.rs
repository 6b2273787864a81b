//! Reports of an instance's contents and work, for people and for programs. The report at its end goes
//! to standard error, since standard output is the command's.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{json, Value};
use weir_config::{Drain, ReportFormat};
use weir_core::proto::audit::{Finding, Missing, Party};
use weir_instance::directories::Remains;
use weir_instance::errln;
use weir_instance::report::{sum, sum_of_tiers, Report};
use weir_instance::size::bytes;
use weir_launch::message::ServerReport;

/// The warning about a server whose journal was given up.
pub const NO_JOURNAL: &str = "given up, for want of room where memory is: a server that is killed \
                              now cannot be started again, and what it has is lost then";

/// Prints the report at the end of an instance.
///
pub fn print(report: &Report, format: ReportFormat, drained: Option<&DrainedFiles<'_>>) {
    match format {
        ReportFormat::None => {}
        ReportFormat::Json => errln!("{}", json(report)),
        ReportFormat::Text => errln::write(format_args!("{}", text(report, drained))),
    }
}

/// A count of work by its name.
pub(crate) fn counter(report: &Report, name: &str) -> u64 {
    let found = report.counters.iter().find(|(counter, _)| counter == name);
    found.map_or(0, |(_, count)| *count)
}

/// The files of an instance that were moved out of it.
#[derive(Debug)]
pub enum DrainedFiles<'a> {
    /// Those of the mount prefix, to a directory.
    Prefix {
        /// The directory.
        dir: &'a Path,
        /// No setting chooses among them.
        are_all: bool,
    },
    /// Those of elevated directories alone.
    Elevated,
}

impl<'a> DrainedFiles<'a> {
    /// Those that the settings choose, if they are moved to `dir`; else those of elevated directories, if it
    /// `elevates`.
    pub fn new(
        dir: Option<&'a Path>,
        elevates: bool,
        settings: &Drain,
    ) -> Option<DrainedFiles<'a>> {
        let Some(dir) = dir else {
            return elevates.then_some(DrainedFiles::Elevated);
        };
        Some(DrainedFiles::Prefix {
            dir,
            are_all: settings.only.0.is_empty() && settings.skip.0.is_empty(),
        })
    }
}

/// A time in us, for people.
#[allow(clippy::cast_precision_loss)] // for people
fn seconds(us: u64) -> String {
    format!("{:.2} s", us as f64 / 1e6)
}

/// The report at the end, for people.
fn text(report: &Report, drained: Option<&DrainedFiles<'_>>) -> String {
    let mut out = format!(
        "weir: written {}, read {}, {} opens, by {} processes\n",
        bytes(counter(report, "bytes_written")),
        bytes(counter(report, "bytes_read")),
        counter(report, "opens"),
        report.clients_ever,
    );
    let waited = counter(report, "room_wait_us");
    if waited > 0 {
        let _ = writeln!(out, "weir: writes waited for room for {}", seconds(waited));
    }
    if report.files + report.directories > 0 {
        let held: u64 = report.tiers.iter().map(|tier| tier.live_bytes).sum();
        let fate = match drained {
            Some(DrainedFiles::Prefix { dir, are_all: true }) => format!("in {}", dir.display()),
            Some(DrainedFiles::Prefix { dir, .. }) => format!(
                "in {} if drain.only and drain.skip choose them, else gone with the instance",
                dir.display()
            ),
            Some(DrainedFiles::Elevated) => {
                "on the parallel file system if in an elevated directory, else gone with the instance"
                    .to_owned()
            }
            None => "left behind and gone with the instance".to_owned(),
        };
        let _ = match drained {
            // The counts have the instance's own notes about names of the parallel file system, too.
            Some(DrainedFiles::Elevated) if held == 0 => Ok(()),
            Some(DrainedFiles::Elevated) => writeln!(out, "weir: {fate}: {}", bytes(held)),
            _ => writeln!(
                out,
                "weir: {fate}: {} files, {} directories, {}",
                report.files,
                report.directories,
                bytes(held)
            ),
        };
    }
    out.push_str(&refusals(report));
    for finding in &report.findings {
        out.push_str(&audited(finding));
    }
    out
}

/// How many programs are named one by one.
const PROGRAMS_NAMED: usize = 8;

fn party(party: &Party) -> String {
    match party.pid {
        0 => format!("{} at server {}", party.program, party.rank),
        pid => format!("{} (process {pid} at server {})", party.program, party.rank),
    }
}

/// Programs by name, and how many more there are.
pub fn parties(all: &[Party]) -> String {
    let named = all.iter().take(PROGRAMS_NAMED).map(party);
    let more = all.len().saturating_sub(PROGRAMS_NAMED);
    let more = (more > 0).then(|| format!("{more} more"));
    named.chain(more).collect::<Vec<String>>().join(", ")
}

/// A finding of the audit, in two lines.
fn audited(finding: &Finding) -> String {
    let ranges: Vec<String> = finding
        .ranges
        .iter()
        .map(|(from, to)| format!("{from}-{}", to - 1))
        .collect();
    let writers: Vec<String> = finding.writers.iter().map(party).collect();
    let missing = match finding.missing {
        Missing::Sync => "had neither synced nor closed it",
        Missing::Lamination => "it was not laminated",
    };
    format!(
        "weir: audit: {} read bytes {} of {} too early, {} times;\n\
         weir: audit:   written by {}: {missing}\n",
        party(&finding.reader),
        ranges.join(", "),
        finding.path,
        finding.reads,
        writers.join(", "),
    )
}

/// Calls that weir does not support, and input that it did not believe; empty when there is none.
fn refusals(report: &Report) -> String {
    let list = |counts: &[(String, u64)]| {
        let items: Vec<String> = counts
            .iter()
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        items.join(", ")
    };
    let mut out = String::new();
    if !report.refused.is_empty() {
        let _ = writeln!(
            out,
            "weir: refused, since not supported: {}",
            list(&report.refused)
        );
    }
    if !report.rejected.is_empty() {
        let _ = writeln!(out, "weir: rejected as invalid: {}", list(&report.rejected));
        let lost = report
            .rejected
            .iter()
            .filter(|(what, _)| LOST_WRITES.contains(&what.as_str()));
        let lost: u64 = lost.map(|(_, count)| *count).sum();
        if lost > 0 {
            let _ = writeln!(
                out,
                "weir: WARNING: {lost} records of writes were among them: bytes that programs had written are lost. A program \
                 wrote into weir's shared memory, or weir has a bug: please report it (weir doctor --bundle)"
            );
        }
    }
    out
}

/// Those of the rejected things that are writes.
const LOST_WRITES: [&str; 2] = ["record", "cell"];

/// The state of a running instance, for people.
pub fn status(name: &str, prefix: &str, report: &Report, now_ns: i64) -> String {
    let up_s = (now_ns - report.started_ns) / 1_000_000_000;
    let mut out = format!("{name} at {prefix}, process {}, up {up_s} s\n", report.pid);
    let _ = writeln!(
        out,
        "  clients   {} now, {} in all",
        report.clients, report.clients_ever
    );
    if !report.attached.is_empty() {
        let _ = writeln!(out, "  attached  {}", parties(&report.attached));
    }
    let _ = writeln!(
        out,
        "  names     {} files, {} directories; {} extent runs",
        report.files, report.directories, report.runs
    );
    let _ = writeln!(
        out,
        "  traffic   {} written, {} read",
        bytes(counter(report, "bytes_written")),
        bytes(counter(report, "bytes_read"))
    );
    let waited = counter(report, "room_wait_us");
    if waited > 0 {
        let _ = writeln!(out, "  waits     {} of writes, for room", seconds(waited));
    }
    for tier in &report.tiers {
        let _ = writeln!(
            out,
            "  {:<8}  {} of data; {} lent of {}, {} warm",
            tier.name,
            bytes(tier.live_bytes),
            bytes(tier.lent_bytes),
            bytes(tier.budget_bytes),
            bytes(tier.warm_bytes)
        );
    }
    if !report.recoverable {
        let _ = writeln!(out, "  journal   {NO_JOURNAL}");
    }
    out + &refusals(report)
}

/// A dead instance, for people.
pub fn dead(remains: &Remains) -> String {
    let (memory, files) = remains.held_bytes();
    let label = remains.first();
    let (name, next) = (&remains.name, remains.advice());
    let was = match remains.is_of_several() {
        true => "servers were",
        false => "server was",
    };
    format!(
        "{name} at {}, dead: its {was} killed ({})\n  left      {} in memory, {} in files\n  \
         next      {next}\n",
        label.mount.display(),
        label.job,
        bytes(memory),
        bytes(files),
    )
}

/// The same for programs.
pub fn dead_json(remains: &Remains) -> Value {
    let (memory_bytes, file_bytes) = remains.held_bytes();
    let label = remains.first();
    json!({
        "name": remains.name,
        "dead": true,
        "recoverable": remains.obstacle().is_none(),
        "job": label.job.id(),
        "servers": label.servers,
        "memory_bytes": memory_bytes,
        "file_bytes": file_bytes,
        "prefix": label.mount.display().to_string(),
        "run_dir": label.run_dir.display().to_string(),
    })
}

/// The sum of the reports of the servers that answered.
pub fn sum_of_seen(seen: &[ServerReport]) -> Option<Report> {
    let reports: Vec<&Report> = seen
        .iter()
        .filter_map(|one| one.report.as_ref().ok())
        .collect();
    sum(&reports)
}

/// The work between two readings, a second.
pub fn rates(before: &Report, after: &Report, between: Duration) -> String {
    let a_second = |name: &str| {
        let more = counter(after, name).saturating_sub(counter(before, name));
        let ms = u64::try_from(between.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        more.saturating_mul(1000) / ms
    };
    format!(
        "  rates     {}/s written, {}/s read, {} opens/s\n",
        bytes(a_second("bytes_written")),
        bytes(a_second("bytes_read")),
        a_second("opens")
    )
}

/// The state of an instance of several servers, for people: all together, then a line each.
pub fn several(name: &str, prefix: &str, seen: &[ServerReport], now_ns: i64) -> String {
    let mut out = match sum_of_seen(seen) {
        Some(all) => status(name, prefix, &all, now_ns),
        None => format!("{name} at {prefix}\n"),
    };
    // The first line tells of one process.
    if let Some(end) = out.find('\n') {
        let up = out[..end]
            .rsplit_once(", ")
            .map_or("", |(_, up)| up)
            .to_owned();
        out.replace_range(
            ..end,
            &format!("{name} at {prefix}, {} servers, {up}", seen.len()),
        );
    }
    for ServerReport {
        server,
        report,
        restarts,
    } in seen
    {
        let what = match report {
            Ok(report) => {
                let tiers = sum_of_tiers(report.tiers.iter());
                let tiers = tiers.iter().map(|tier| {
                    let (live, budget) = (bytes(tier.live_bytes), bytes(tier.budget_bytes));
                    format!("{} {live} of {budget}", tier.name)
                });
                let tiers: Vec<String> = tiers.collect();
                let (pid, clients) = (report.pid, report.clients);
                let again = match restarts {
                    0 => String::new(),
                    _ => format!(", killed and started again {restarts} times"),
                };
                let tiers = tiers.join(", ");
                format!("process {pid}, {clients} clients, {tiers}{again}")
            }
            Err(why) => why.clone(),
        };
        let _ = writeln!(out, "  server {:<3} {}: {what}", server.rank, server.host);
    }
    out
}

/// The same for programs: the sum, and each.
pub fn several_json(seen: &[ServerReport]) -> Value {
    let mut value = sum_of_seen(seen).as_ref().map_or_else(|| json!({}), json);
    value["servers"] = seen.len().into();
    value["each"] = seen
        .iter()
        .map(|one| {
            let ServerReport {
                server, restarts, ..
            } = one;
            let mut one = match &one.report {
                Ok(report) => json(report),
                Err(why) => json!({ "error": why }),
            };
            one["rank"] = server.rank.into();
            one["host"] = server.host.clone().into();
            one["restarts"] = (*restarts).into();
            one
        })
        .collect::<Vec<Value>>()
        .into();
    value
}

/// The same for programs: counts by name as objects.
pub fn json(report: &Report) -> Value {
    let object = |counts: &[(String, u64)]| -> Value {
        let items = counts
            .iter()
            .map(|(name, count)| (name.clone(), json!(count)));
        items.collect::<serde_json::Map<_, _>>().into()
    };
    let mut value = json!(report);
    value["counters"] = object(&report.counters);
    value["refused"] = object(&report.refused);
    value["requests"] = object(&report.requests);
    value["rejected"] = object(&report.rejected);
    let attached = report.attached.iter().map(
        |party| json!({ "program": party.program, "process": party.pid, "server": party.rank }),
    );
    value["attached"] = attached.collect::<Vec<Value>>().into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::proto::TierStatus;

    fn report() -> Report {
        Report {
            clients_ever: 3,
            counters: vec![("bytes_written".into(), 3 << 20), ("opens".into(), 7)],
            tiers: vec![TierStatus {
                name: "memory".into(),
                live_bytes: 1 << 20,
                ..TierStatus::default()
            }],
            ..Report::default()
        }
    }

    #[test]
    fn the_report_says_what_was_written_left_and_refused() {
        let mut report = report();
        assert_eq!(
            text(&report, None),
            "weir: written 3.00 MiB, read 0 B, 7 opens, by 3 processes\n"
        );
        report.counters.push(("room_wait_us".into(), 1_500_000));
        report.files = 2;
        let elevated = Some(DrainedFiles::Elevated);
        let safe = super::text(&report, elevated.as_ref());
        assert!(
            safe.ends_with("else gone with the instance: 1.00 MiB\n"),
            "{safe}"
        );
        report.refused = vec![("xattr".into(), 4)];
        let text = text(&report, None);
        assert!(
            text.contains("gone with the instance: 2 files, 0 directories, 1.00 MiB"),
            "{text}"
        );
        assert!(text.contains("not supported: xattr 4"), "{text}");
        assert!(text.contains("waited for room for 1.50 s"), "{text}");
    }

    #[test]
    fn findings_of_the_audit_name_who_what_and_why() {
        let party = |rank, pid, program: &str| Party {
            rank,
            pid,
            program: program.to_owned(),
        };
        let finding = Finding {
            path: "/out.h5".into(),
            ranges: vec![(0, 4096), (8192, 8193)],
            reader: party(1, 12, "plot"),
            writers: vec![party(0, 34, "sim")],
            missing: Missing::Sync,
            reads: 3,
        };
        assert_eq!(
            audited(&finding),
            "weir: audit: plot (process 12 at server 1) read bytes 0-4095, 8192-8192 of /out.h5 too early, 3 times;\n\
             weir: audit:   written by sim (process 34 at server 0): had neither synced nor closed it\n"
        );
    }

    #[test]
    fn rates_are_what_came_between_a_second() {
        let (before, mut after) = (report(), report());
        after.counters = vec![("bytes_written".into(), 7 << 20), ("opens".into(), 10)];
        assert_eq!(
            rates(&before, &after, Duration::from_millis(500)),
            "  rates     8.00 MiB/s written, 0 B/s read, 6 opens/s\n"
        );
    }

    #[test]
    fn counts_are_objects_for_programs() {
        let json = json(&report());
        assert_eq!(json["counters"]["opens"], 7);
        assert_eq!(json["tiers"][0]["live_bytes"], 1 << 20);
        assert_eq!(json["clients_ever"], 3);
    }
}
