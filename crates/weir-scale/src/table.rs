//! Predictions as text, a row for each number of nodes.

use std::fmt::Write;

use crate::{real, Costs, Prediction};

/// GiB.
const GIB: f64 = 1_073_741_824.0;

/// The rates and times of jobs, largest last.
pub fn rates(all: &[Prediction], costs: &Costs) -> String {
    let mut out = String::from(
        "nodes   start  checkpoint: open  write  publish   GiB/s  restart: look-up  read   GiB/s  shuffled   GiB/s  by owner\n",
    );
    for one in all {
        let gib = real(one.job.total_bytes()) / GIB;
        let checkpoint = one.seconds(&["open", "write", "publish"]);
        let restart = one.seconds(&["reopen", "look-up", "read"]);
        let shuffled = one.seconds(&["look-up of all", "shuffled"]);
        // What reading would take if each call asked the file's owner where its bytes are.
        let calls = real(one.job.tasks() * one.job.pieces());
        let by_owner = shuffled.max(calls * costs.request_ns / 1e9);
        let _ = writeln!(
            out,
            "{:>5} {:>7} {:>17} {:>6} {:>8} {:>7.0} {:>17} {:>5} {:>7.0} {:>9} {:>7} {:>9.0}",
            one.job.nodes,
            seconds(one.start_s),
            seconds(one.seconds(&["open"])),
            seconds(one.seconds(&["write"])),
            seconds(one.seconds(&["publish"])),
            gib / checkpoint,
            seconds(one.seconds(&["reopen", "look-up"])),
            seconds(one.seconds(&["read"])),
            gib / restart,
            seconds(shuffled),
            rate(gib, shuffled),
            gib / by_owner,
        );
    }
    out
}

/// What servers have to do and to keep: on average, and the busiest.
pub fn loads(all: &[Prediction]) -> String {
    let mut out = String::from(
        "nodes  requests a server (mean, most): open    publish    look-ups    bytes a link: publish    look-ups    records    memory\n",
    );
    for one in all {
        let _ = write!(out, "{:>5} ", one.job.nodes);
        for names in [&["open"][..], &["publish"], &["look-up", "look-up of all"]] {
            let phases = || names.iter().filter_map(|name| one.phase(name));
            let mean: f64 = phases().map(|phase| phase.requests.mean).sum();
            let most: f64 = phases().map(|phase| phase.requests.most).sum();
            let _ = write!(out, " {:>15}", format!("{}, {}", short(mean), short(most)));
        }
        for names in [&["publish"][..], &["look-up", "look-up of all"]] {
            let phases = names.iter().filter_map(|name| one.phase(name));
            let most: f64 = phases.map(|phase| phase.wire_bytes.most).sum();
            let _ = write!(out, " {:>9}B", short(most));
        }
        let (records, memory) = (one.records, one.memory_bytes);
        let _ = writeln!(
            out,
            " {:>15} {:>15}",
            format!("{}, {}", short(records.mean), short(records.most)),
            format!("{}B, {}B", short(memory.mean), short(memory.most)),
        );
    }
    out
}

/// What telling all nodes the same takes.
pub fn telling(all: &[Prediction]) -> String {
    let mut out =
        String::from("nodes     recall  told by one   laminate    extents  messages of the home\n");
    for one in all {
        let telling = &one.telling;
        let _ = writeln!(
            out,
            "{:>5} {:>10} {:>12} {:>10} {:>10} {:>9}",
            one.job.nodes,
            seconds(telling.recall_s),
            seconds(telling.recall_each_s),
            seconds(telling.laminate_s),
            seconds(telling.extents_s),
            telling.messages,
        );
    }
    out
}

fn rate(gib: f64, seconds: f64) -> String {
    match seconds > 0.0 {
        true => format!("{:.0}", gib / seconds),
        false => "-".to_owned(),
    }
}

/// `12 us`, `3.4 ms`, `5.6 s`.
pub fn seconds(time: f64) -> String {
    match time {
        t if t >= 100.0 => format!("{t:.0}s"),
        t if t >= 1.0 => format!("{t:.1}s"),
        t if t >= 1e-3 => format!("{:.1}ms", t * 1e3),
        t => format!("{:.0}us", t * 1e6),
    }
}

/// `12`, `3.4k`, `5.6M`.
fn short(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.1}G", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e3 => format!("{:.1}k", n / 1e3),
        n if n >= 10.0 || n.fract() == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{predict, Job, Layout, Machines};

    #[test]
    fn each_row_has_all_columns() {
        let costs = Costs::default();
        let rows: Vec<Prediction> = [1, 8]
            .map(|nodes| {
                let job = Job {
                    nodes,
                    processes: 2,
                    bytes: 64 << 20,
                    transfer: 1 << 20,
                    layout: Layout::Segmented,
                };
                predict(&job, Machines::Each, &costs)
            })
            .into();
        let text = rates(&rows, &costs);
        let columns: Vec<usize> = text
            .lines()
            .skip(1)
            .map(|row| row.split_whitespace().count())
            .collect();
        assert_eq!(columns, [12, 12], "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(loads(&rows).lines().count(), 3);
        assert_eq!(telling(&rows).lines().count(), 3);
    }

    #[test]
    fn times_and_counts_are_short() {
        assert_eq!(
            [0.000_012, 0.0034, 5.6, 120.0].map(seconds),
            ["12us", "3.4ms", "5.6s", "120s"]
        );
        assert_eq!(
            [3.0, 3.25, 12_345.0, 5.6e6].map(short),
            ["3", "3.2", "12.3k", "5.6M"]
        );
    }
}
