//! Predictions as text, a row for each number of nodes.

use std::fmt::Write;

use crate::load::{real, Load};
use crate::phases::Prediction;

/// The requests and records of servers, on average and of the busiest, and the trees.
pub fn table(all: &[Prediction]) -> String {
    let mut out = String::from(
        "nodes  requests a server (mean, most): open      publish       reopen    look-ups         records  home tells  in steps  start in steps\n",
    );
    for one in all {
        let _ = write!(out, "{:>5}                           ", one.job.nodes);
        for names in [
            &["open"][..],
            &["publish"],
            &["reopen"],
            &["look-up", "look-up of all"],
        ] {
            let _ = write!(out, " {:>12}", mean_and_most(&one.requests(names)));
        }
        let _ = writeln!(
            out,
            " {:>15} {:>11} {:>9} {:>15}",
            mean_and_most(&one.records),
            one.telling.width,
            one.telling.depth,
            one.start.depth,
        );
    }
    out
}

fn mean_and_most(load: &Load) -> String {
    format!("{}, {}", short(load.mean), short(real(load.most)))
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
    use crate::{predict, Job, Layout};

    #[test]
    fn each_row_has_all_columns() {
        let rows: Vec<Prediction> = [1, 8]
            .map(|nodes| {
                predict(&Job {
                    nodes,
                    processes: 2,
                    bytes: 64 << 20,
                    transfer: 1 << 20,
                    layout: Layout::Segmented,
                })
            })
            .into();
        let text = table(&rows);
        let columns = |row: &str| row.split_whitespace().count();
        assert_eq!(text.lines().skip(1).map(columns).max(), Some(14), "{text}");
        assert_eq!(text.lines().skip(1).map(columns).min(), Some(14), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn counts_are_short() {
        assert_eq!(
            [3.0, 3.25, 12_345.0, 5.6e6].map(short),
            ["3", "3.2", "12.3k", "5.6M"]
        );
    }
}
