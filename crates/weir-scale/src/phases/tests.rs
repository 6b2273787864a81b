//! The model against closed forms, and what it must show.

use super::*;

fn job(nodes: u16, layout: Layout) -> Job {
    Job {
        nodes,
        processes: 4,
        bytes: 1 << 30,
        transfer: 1 << 20,
        layout,
    }
}

fn near(found: f64, expected: f64, within: f64) {
    assert!(
        (found / expected - 1.0).abs() <= within,
        "{found} for {expected}"
    );
}

#[test]
fn one_node_is_what_its_memory_is() {
    let costs = Costs::default();
    for layout in [Layout::Segmented, Layout::Strided, Layout::Private] {
        let one = predict(&job(1, layout), Machines::Each, &costs);
        let bytes = 4.0 * f64::from(1 << 30);
        near(
            one.seconds(&["write"]),
            bytes / costs.write_bytes_per_s,
            1e-9,
        );
        near(one.seconds(&["read"]), bytes / costs.read_bytes_per_s, 1e-9);
        for phase in &one.phases {
            assert!(phase.wire_bytes.total.abs() < 0.5, "{phase:?}");
            assert_eq!(
                phase.asked.get("fetch").map_or(0, |n| n[0]),
                0,
                "nothing is far"
            );
        }
        let seen = one.seconds(&["open", "reopen"]);
        assert!(seen < 1e-3, "nobody is asked: {seen} s");
        // A process's record ends with its segment: 16 of them, of 4 processes.
        near(one.records.total, 64.0, 1e-9);
    }
}

#[test]
fn a_shared_files_look_ups_do_not_go_to_one_server() {
    for nodes in [16, 128, 1024] {
        let all = predict(
            &job(nodes, Layout::Segmented),
            Machines::Each,
            &Costs::default(),
        );
        let runs = (0..usize::from(nodes)).map(|server| all.asked("runs", server));
        let (total, most) = (runs.clone().sum::<u64>(), runs.max().unwrap());
        let share = real(most) / real(total) * f64::from(nodes);
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
    let all = predict(&many, Machines::Each, &Costs::default());
    for name in ["open", "publish"] {
        let requests = all.phase(name).unwrap().requests;
        assert!(requests.most / requests.mean < 1.1, "{name}: {requests:?}");
    }
}

#[test]
fn a_shared_open_is_hot_and_that_shows() {
    let all = predict(
        &job(64, Layout::Segmented),
        Machines::Each,
        &Costs::default(),
    );
    let open = all.phase("open").unwrap();
    assert_eq!(open.asked["make"].iter().max(), Some(&(64 * 4)));
    // Attaching: all but the home's own, and the first, who attached as it made the file.
    assert_eq!(open.asked["hold"].iter().max(), Some(&(63 * 4 - 1)));
    assert!(
        open.requests.most > 60.0 * open.requests.mean,
        "{:?}",
        open.requests
    );
}

#[test]
fn write_time_does_not_depend_on_the_number_of_nodes() {
    let costs = Costs::default();
    let time =
        |nodes| predict(&job(nodes, Layout::Segmented), Machines::Each, &costs).seconds(&["write"]);
    near(time(256), time(1), 1e-9);
}

#[test]
fn starting_grows_with_the_depth_of_the_tree() {
    let costs = Costs::default();
    let (few, many) = (start_s(33, &costs), start_s(10_000, &costs));
    assert!(many < 3.2 * few, "{few} {many}");
    assert!(start_s(1, &costs) < 0.01);
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
