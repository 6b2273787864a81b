//! The report of a server, and the sum of several.

use weir_core::proto::TierStatus;

/// The contents and the work of an instance; at its end, the report.
pub use weir_core::proto::ServerStatus as Report;

/// Adds up the reports of several servers: numbers are added, tiers by their kind. `None`
/// if there are none.
pub fn sum(reports: &[&Report]) -> Option<Report> {
    let (first, others) = reports.split_first()?;
    let mut all = (*first).clone();
    for one in others {
        all.started_ns = all.started_ns.min(one.started_ns);
        all.clients += one.clients;
        all.clients_ever += one.clients_ever;
        all.files += one.files;
        all.directories += one.directories;
        all.runs += one.runs;
        add_counts(&mut all.counters, &one.counters);
        add_counts(&mut all.refused, &one.refused);
        add_counts(&mut all.requests, &one.requests);
        add_counts(&mut all.rejected, &one.rejected);
        all.recoverable &= one.recoverable;
        all.attached.extend_from_slice(&one.attached);
        all.findings.extend_from_slice(&one.findings);
    }
    if !others.is_empty() {
        all.tiers = sum_of_tiers(reports.iter().flat_map(|report| &report.tiers));
    }
    Some(all)
}

/// The memory of all, and the directories of all, whose names tell nodes apart.
pub fn sum_of_tiers<'t>(tiers: impl Iterator<Item = &'t TierStatus>) -> Vec<TierStatus> {
    let mut sums: Vec<TierStatus> = Vec::new();
    for tier in tiers {
        let name = if tier.name == "memory" {
            "memory"
        } else {
            "files"
        };
        let at = sums.iter().position(|known| known.name == name);
        let at = at.unwrap_or_else(|| {
            sums.push(TierStatus {
                name: name.to_owned(),
                ..TierStatus::default()
            });
            sums.len() - 1
        });
        let sum = &mut sums[at];
        sum.budget_bytes += tier.budget_bytes;
        sum.lent_bytes += tier.lent_bytes;
        sum.live_bytes += tier.live_bytes;
        sum.warm_bytes += tier.warm_bytes;
    }
    sums
}

fn add_counts(all: &mut Vec<(String, u64)>, one: &[(String, u64)]) {
    for (name, count) in one {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => all.push((name.clone(), *count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn count(report: &Report, name: &str) -> u64 {
        let mut counters = report.counters.iter();
        counters.find(|(known, _)| known == name).unwrap().1
    }

    #[test]
    fn several_servers_add_up() {
        let (mut one, mut two) = (report(), report());
        two.counters = vec![("opens".into(), 1), ("closes".into(), 2)];
        for (report, dir) in [(&mut one, "/a"), (&mut two, "/b")] {
            report.tiers.push(TierStatus {
                name: dir.into(),
                budget_bytes: 5,
                ..TierStatus::default()
            });
        }
        let all = sum(&[&one, &two]).unwrap();
        assert_eq!(all.clients_ever, 6);
        assert_eq!(count(&all, "opens"), 8);
        assert_eq!(count(&all, "closes"), 2);
        assert_eq!(all.tiers[0].live_bytes, 2 << 20);
        assert_eq!(
            (all.tiers[1].name.as_str(), all.tiers[1].budget_bytes),
            ("files", 10)
        );
        assert_eq!(all.tiers.len(), 2);
        assert_eq!(sum(&[]), None);
    }
}
