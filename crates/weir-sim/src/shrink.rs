//! Making a failing run smaller: without clients, faults and late operations, as long as
//! something is still wrong.

use crate::plan::{Exclusions, Plan};
use crate::run::run;

/// The parts of a failing plan that can be left out so that it still fails.
pub fn shrink(plan: &Plan) -> Exclusions {
    let mut without = Exclusions::default();
    let fails = |without: &Exclusions| {
        let reduced = plan.clone().without(without);
        // A panic is a failure too; it has been printed once already.
        let quiet = std::panic::AssertUnwindSafe(|| run(&reduced, false));
        std::panic::catch_unwind(quiet).map_or(true, |outcome| !outcome.faults.is_empty())
    };
    for client in &plan.clients {
        let mut less = without.clone();
        less.clients.push(client.number);
        if fails(&less) {
            without = less;
        }
    }
    for fault in 0..plan.faults.len() {
        let mut less = without.clone();
        less.faults.push(fault);
        if fails(&less) {
            without = less;
        }
    }
    let all = plan.clients.iter().map(|client| client.operations).max();
    let (mut enough, mut few) = (all.unwrap_or(0), 0);
    while few < enough {
        let middle = few.midpoint(enough);
        let mut less = without.clone();
        less.operations = Some(middle);
        if fails(&less) {
            enough = middle;
            without = less;
        } else {
            few = middle + 1;
        }
    }
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_plan_is_what_it_was() {
        let seed = 12;
        let plan = Plan::from_seed(seed);
        let less = Exclusions {
            clients: vec![0],
            faults: Vec::new(),
            operations: Some(3),
        };
        let reduced = plan.clone().without(&less);
        assert_eq!(reduced.clients.len(), plan.clients.len() - 1);
        for (left, whole) in reduced.clients.iter().zip(&plan.clients[1..]) {
            assert_eq!(
                (left.number, left.rank, left.seed),
                (whole.number, whole.rank, whole.seed)
            );
            assert_eq!(left.operations, 3);
        }
        assert_eq!(
            (reduced.network_faults, reduced.faults),
            (plan.network_faults, plan.faults)
        );
    }
}
