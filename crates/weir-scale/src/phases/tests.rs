//! The model against closed forms, and hot spots that it must show.

use super::*;
use crate::load::real;

fn job(nodes: u16, layout: Layout) -> Job {
    Job {
        nodes,
        processes: 4,
        bytes: 1 << 30,
        transfer: 1 << 20,
        layout,
    }
}

#[test]
fn one_node_asks_no_other() {
    for layout in [Layout::Segmented, Layout::Strided, Layout::Private] {
        let one = predict(&job(1, layout));
        // A process's record ends with its segment: 16 of them, of 4 processes.
        assert_eq!(one.records.total, 64);
        for operation in ["find_to_keep", "hold", "lease"] {
            assert_eq!(one.asked(operation, 0), 0, "{operation} is of other nodes");
        }
    }
}

#[test]
fn a_shared_files_look_ups_do_not_go_to_one_server() {
    for nodes in [16, 128, 1024] {
        let all = predict(&job(nodes, Layout::Segmented));
        let runs = (0..usize::from(nodes)).map(|server| all.asked("runs", server));
        let runs = Load::sum(&runs.collect::<Vec<u64>>());
        let share = real(runs.most) / runs.mean;
        assert!(
            share < 1.6,
            "{nodes} nodes: the busiest has {share} of a share"
        );
    }
}

#[test]
fn requests_of_private_files_are_even() {
    // Enough files that chance does not hide what placement does.
    let many = Job {
        processes: 1024,
        bytes: 1 << 20,
        ..job(16, Layout::Private)
    };
    let all = predict(&many);
    for name in ["open", "publish"] {
        let requests = all.phase(name).unwrap().requests;
        let share = real(requests.most) / requests.mean;
        assert!(share < 1.1, "{name}: {requests:?}");
    }
}

#[test]
fn a_shared_open_is_hot_and_that_shows() {
    let all = predict(&job(64, Layout::Segmented));
    let open = all.phase("open").unwrap();
    assert_eq!(open.asked["make"].iter().max(), Some(&(64 * 4)));
    // Attaching: all but the home's own, and the first, who attached as it made the file.
    assert_eq!(open.asked["hold"].iter().max(), Some(&(63 * 4 - 1)));
    let share = real(open.requests.most) / open.requests.mean;
    assert!(share > 60.0, "{:?}", open.requests);
}

#[test]
fn trees_grow_with_the_logarithm_and_their_root_says_little() {
    let start = |nodes| predict(&small(nodes)).start;
    assert_eq!([1, 2, 33, 34].map(|nodes| start(nodes).depth), [0, 1, 1, 2]);
    assert_eq!(start(10_000).depth, 3);
    let telling = predict(&small(10_000)).telling;
    assert_eq!(telling.width, u64::from(FAN_OUT));
    assert!(telling.depth <= 5, "{telling:?}");
}

fn small(nodes: u16) -> Job {
    Job {
        processes: 1,
        bytes: 1 << 20,
        ..job(nodes, Layout::Segmented)
    }
}

#[test]
fn windows_are_asked_for_once() {
    let mut known = Vec::new();
    cover(&mut known, 5000, 5010, 100_000);
    cover(&mut known, 5005, 6100, 100_000);
    assert_eq!(known, [(5000, 6024), (6024, 7048)]);
    let mut small = Vec::new();
    cover(&mut small, 3, 4, 1024);
    cover(&mut small, 9, 10, 1024);
    assert_eq!(small, [(0, 1024)]);
}
