//! Instances of several nodes under the launchers of real clusters: Slurm, MPICH's and Open MPI's own,
//! and stand-ins for Flux, PBS and LSF with the same commands. Nodes are namespaces; skipped, with a
//! message, without root.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use weir_cluster::guard;
use weir_cluster::leftovers::{assert_gone, left_behind};
use weir_cluster::slurm::{self, Slurm};
use weir_cluster::{can_test_with, missing as machine_lacks, Cluster, Node, Spec};
use weir_tests::build::{program_in, Compiler};
use weir_tests::launch::weir_binary;
use weir_tests::needs::{self, missing, Need};
use weir_tests::source_root;

fn cluster(what: &str, nodes: usize, needs: &[Need], mut lacks: Vec<String>) -> Option<Cluster> {
    lacks.extend(machine_lacks(true));
    let packages = missing(needs);
    if !packages.is_empty() {
        lacks.push(format!("apt-get install {}", packages.join(" ")));
    }
    can_test_with(what, &lacks).then(|| Cluster::up(&Spec::with_ssh(nodes)).unwrap())
}

fn small(command: &mut Command) -> &mut Command {
    command
        .env("WEIR_MEMORY_BUDGET", "128M")
        .env("WEIR_FILE_BUDGET", "128M")
        .env("WEIR_MEMORY_WARM", "0")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs `where.c` on three nodes, two processes each, and checks where they ran.
fn mpi(cluster: &Cluster, compiler: Compiler, start: &[&str]) {
    let program = program_in(&source_root().join("tests/cluster"), "where.c", compiler).unwrap();
    let hosts = cluster.host_list();
    let mut command = cluster.node(0).command(weir_binary().unwrap());
    command.args(["run", "--hosts", &hosts, "--"]).args(start);
    let output = small(&mut command)
        .arg(program)
        .arg("/weir")
        .output()
        .unwrap();
    let text = said(&output);
    let words = text
        .lines()
        .filter_map(|line| line.split_once(" on ")?.1.split_once(" uses "));
    let (hosts, instances): (BTreeSet<&str>, BTreeSet<&str>) = words.unzip();
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("rank "))
            .count(),
        6,
        "{text}"
    );
    let expected: BTreeSet<&str> = cluster.nodes().iter().map(Node::host).collect();
    assert_eq!(hosts, expected, "{text}");
    assert_eq!(instances.len(), 1, "{text}");
    assert!(text.contains("/tmp/weir-0/run-"), "{text}");
    // The files of all six, with the nodes' reports added up.
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(report.contains("6 files"), "{report}");
    assert_gone(cluster);
}

#[test]
fn mpich_starts_programs_on_all_nodes() {
    let needs = [needs::MPICH_RUN, needs::MPICH_CC];
    if let Some(cluster) = cluster("MPICH over ssh", 3, &needs, vec![]) {
        let hosts = cluster.host_list();
        let start = ["mpiexec.mpich", "-hosts", &hosts, "-n", "6"];
        mpi(&cluster, Compiler::Mpich, &start);
    }
}

#[test]
fn openmpi_starts_programs_on_all_nodes() {
    let needs = [needs::OPENMPI_RUN, needs::OPENMPI_CC];
    if let Some(cluster) = cluster("Open MPI over ssh", 3, &needs, vec![]) {
        let slots: Vec<String> = cluster
            .nodes()
            .iter()
            .map(|node| format!("{}:2", node.host()))
            .collect();
        let slots = slots.join(",");
        let start = ["mpiexec.openmpi", "--host", &slots, "-n", "6"];
        mpi(&cluster, Compiler::OpenMpi, &start);
        // In addition to the options that the user passes on.
        let start = ["mpiexec.openmpi", "-x", "HOME", "--host", &slots, "-n", "6"];
        mpi(&cluster, Compiler::OpenMpi, &start);
    }
}

/// Runs a job of `nodes` nodes to its end; returns its output.
fn job(slurm: &Slurm<'_>, cluster: &Cluster, nodes: usize, script: &str) -> String {
    let weir = weir_binary().unwrap();
    let dir = cluster.dir().join("shared");
    let (file, out) = (dir.join("job.sh"), dir.join("job.out"));
    let bin = weir.parent().unwrap().display();
    std::fs::write(
        &file,
        format!("#!/bin/bash\nset -e\nPATH=$PATH:{bin}\n{script}\n"),
    )
    .unwrap();
    let mut sbatch = slurm.command(cluster.node(0), "sbatch");
    sbatch.args([
        "--wait",
        "--time=2",
        &format!("--nodes={nodes}"),
        &format!("--ntasks={nodes}"),
    ]);
    let status = small(&mut sbatch)
        .arg("-o")
        .arg(&out)
        .arg(&file)
        .output()
        .unwrap();
    let text = std::fs::read_to_string(&out).unwrap_or_default();
    assert!(status.status.success(), "{status:?}\n{text}");
    text
}

#[test]
fn slurm_jobs_have_an_instance_over_their_nodes() {
    let Some(cluster) = cluster("Slurm", 4, &[], slurm::missing()) else {
        return;
    };
    let slurm = Slurm::up(&cluster).unwrap();
    let text = job(
        &slurm,
        &cluster,
        3,
        "weir start\nexport WEIR_INSTANCE=/tmp/weir-0/job-$SLURM_JOB_ID\n\
         srun -n 3 weir run -- sh -c 'f=/weir/$SLURM_PROCID; echo $SLURMD_NODENAME > $f; cat $f'\n\
         echo $(weir run -- ls /weir)\nweir stop",
    );
    assert!(
        text.contains("on 3 servers; WEIR_INSTANCE=/tmp/weir-0/job-"),
        "{text}"
    );
    let nodes = cluster.nodes().iter().filter(|node| {
        let used = text.lines().any(|line| line == node.host());
        assert!(left_behind(node).is_empty());
        used
    });
    assert_eq!(nodes.count(), 3, "{text}");
    assert!(text.lines().any(|line| line == "0 1 2"), "{text}");
    assert!(text.contains("3 files"), "{text}");

    // The output of the servers is longer than the lines that srun keeps whole.
    let text = job(
        &slurm,
        &cluster,
        4,
        "weir start\nexport WEIR_INSTANCE=/tmp/weir-0/job-$SLURM_JOB_ID\n\
         srun -n 4 weir run -- sh -c 'for i in 1 2 3; do echo $i > /weir/$SLURM_PROCID.$i; done'\n\
         srun -n 4 sh -c 'for i in $(seq 10); do weir status; done'\nweir stop",
    );
    let server = |line: &&str| line.trim_start().starts_with("server ");
    let (told, silent): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(server)
        .partition(|line| line.contains(": process "));
    assert_eq!((told.len(), silent), (4 * 10 * 4, vec![]), "{text}");

    // Without weir start: weir run finds the job's nodes.
    let text = job(
        &slurm,
        &cluster,
        2,
        "weir run -- sh -c 'ls $WEIR_INSTANCE'; echo $?",
    );
    assert!(text.contains("roster.json"), "{text}");
    assert_gone(&cluster);

    // A job that forgets weir stop leaves nothing.
    let text = job(
        &slurm,
        &cluster,
        4,
        "weir start\nsrun -n 4 weir run -i job-$SLURM_JOB_ID true",
    );
    assert!(text.contains("on 4 servers"), "{text}");
    assert_gone(&cluster);
}

/// A stand-in for a batch system's commands, put first in PATH: it writes its arguments to a file, and
/// starts the program over ssh like the real one.
struct StandIn {
    bin: PathBuf,
    log: PathBuf,
}

impl StandIn {
    fn new(cluster: &Cluster, scripts: &[(&str, &str)]) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let bin = cluster.dir().join("shared/bin");
        let log = cluster.dir().join("shared/words");
        std::fs::create_dir_all(&bin).unwrap();
        for (name, script) in scripts {
            let path = bin.join(name);
            let head = format!("#!/bin/bash\necho \"{name} $*\" >> {}\n", log.display());
            std::fs::write(&path, head + script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { bin, log }
    }

    fn path(&self) -> String {
        format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap())
    }

    /// Starts and stops an instance with these variables of the batch system; returns the arguments that
    /// its commands were given.
    fn start_and_stop(&self, cluster: &Cluster, variables: &[(&str, &str)]) -> Vec<String> {
        for words in [&["start", "job"], &["stop", "job"]] {
            let mut command = cluster.node(0).command(weir_binary().unwrap());
            command.args(words).env("PATH", self.path());
            command.envs(variables.iter().copied());
            let output = small(&mut command).output().unwrap();
            let text = said(&output);
            let servers = format!("on {} servers", cluster.nodes().len());
            assert!(words[0] == "stop" || text.contains(&servers), "{text}");
        }
        assert_gone(cluster);
        let words = std::fs::read_to_string(&self.log).unwrap();
        self.kill_and_recover(cluster, variables);
        words.lines().map(str::to_owned).collect()
    }

    /// Starts an instance, kills it on all nodes, and has its servers brought back by the same commands.
    fn kill_and_recover(&self, cluster: &Cluster, variables: &[(&str, &str)]) {
        let pfs = tempfile::tempdir_in("/var/tmp").unwrap();
        let weir = |words: &[&str]| {
            let mut command = cluster.node(0).command(weir_binary().unwrap());
            command.args(words).env("PATH", self.path());
            command.envs(variables.iter().copied());
            small(&mut command).output().unwrap()
        };
        said(&weir(&["start", "killed", "--elevate", text(pfs.path())]));
        for node in cluster.nodes() {
            let mut kill = node.command("pkill");
            let kill = kill.args(["-KILL", "-f", "weir (agent|server)"]);
            kill.output().unwrap();
        }
        let recovered = weir(&["recover", "killed"]);
        said(&recovered);
        let told = String::from_utf8_lossy(&recovered.stderr);
        assert!(told.contains("its servers go on with it"), "{told}");
        assert_gone(cluster);
    }
}

fn slots_file(cluster: &Cluster) -> PathBuf {
    let lines = cluster
        .nodes()
        .iter()
        .map(|node| format!("{0}\n{0}\n", node.host()));
    let file = cluster.dir().join("shared/nodes");
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    file
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn lsf_is_given_a_blaunch_a_node() {
    let Some(cluster) = cluster("blaunch", 3, &[], vec![]) else {
        return;
    };
    let blaunch = "host=$1; shift; exec ssh $host \"$@\"";
    let stand_in = StandIn::new(&cluster, &[("blaunch", blaunch)]);
    let file = slots_file(&cluster);
    let words = stand_in.start_and_stop(&cluster, &[("LSB_DJOB_HOSTFILE", text(&file))]);
    let weir = weir_binary().unwrap();
    let expected = |i: usize| {
        format!(
            "blaunch {} {} agent",
            cluster.node(i).host(),
            weir.display()
        )
    };
    let words: BTreeSet<String> = words.into_iter().collect();
    assert_eq!(words, BTreeSet::from([expected(1), expected(2)]));
}

/// Passes its standard input to a program on each host of `hosts`, and merges their output.
const BROADCAST: &str = "
dir=$(mktemp -d); n=0
for host in $hosts; do
    mkfifo $dir/$n; ssh $host \"$command\" < $dir/$n & pids+=($!); files+=($dir/$n); n=$((n+1))
done
tee \"${files[@]}\" > /dev/null
wait; rm -r $dir
";

#[test]
fn flux_is_given_one_exec_for_all() {
    let Some(cluster) = cluster("flux exec", 4, &[], vec![]) else {
        return;
    };
    let name = cluster.name();
    let flux = format!(
        "case $1 in\ngetattr) echo '{name}-[0-3]' ;;\nexec) shift; [ $1 = -r ] || exit 9\n\
         for rank in ${{2//,/ }}; do hosts+=\" {name}-$rank\"; done; shift 2; command=\"$*\"\n\
         {BROADCAST} ;;\n*) exit 9 ;;\nesac\n"
    );
    let stand_in = StandIn::new(&cluster, &[("flux", &flux)]);
    let words = stand_in.start_and_stop(&cluster, &[("FLUX_URI", "local:///run/flux/local")]);
    let weir = weir_binary().unwrap();
    let exec = format!("flux exec -r 1,2,3 {} agent", weir.display());
    assert!(words.contains(&exec), "{words:?}");
    let known = ["flux getattr hostlist", &exec];
    assert!(
        words.iter().all(|word| known.contains(&word.as_str())),
        "{words:?}"
    );
}

#[test]
fn pbs_is_given_a_pbsdsh_a_node_and_agents_connect_back() {
    let Some(cluster) = cluster("pbsdsh", 3, &[], vec![]) else {
        return;
    };
    let pbsdsh = "[ $1 = -n ] && [ $3 = -- ] || exit 9\n\
                  host=$(sed -n $(($2 + 1))p $PBS_NODEFILE); shift 3\n\
                  exec ssh $host \"$@\" < /dev/null > /dev/null";
    let stand_in = StandIn::new(&cluster, &[("pbsdsh", pbsdsh)]);
    let file = slots_file(&cluster);
    let home = cluster.dir().join("shared");
    let variables = [("PBS_NODEFILE", text(&file)), ("HOME", text(&home))];
    let words = stand_in.start_and_stop(&cluster, &variables);
    assert_eq!(words.len(), 2, "{words:?}");
    let weir = weir_binary().unwrap();
    for slot in [2, 4] {
        let start = format!("pbsdsh -n {slot} -- {} agent --join ", weir.display());
        assert!(
            words.iter().any(|word| word.starts_with(&start)),
            "{words:?}"
        );
    }
    let left = std::fs::read_dir(&home).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    let hidden = left
        .iter()
        .filter(|name| name.to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0, "{left:?}");
}

#[test]
fn slurm_is_given_one_step_for_all() {
    let Some(cluster) = cluster("srun", 3, &[], vec![]) else {
        return;
    };
    let name = cluster.name();
    let srun = format!(
        "for word; do case $word in\n--nodelist=*) list=${{word#*=}}; hosts=${{list//,/ }} ;;\n\
         --*) ;;\n*) command+=\"$word \" ;;\nesac; done\n{BROADCAST}"
    );
    let scontrol = format!("for i in 0 1 2; do echo {name}-$i; done");
    let stand_in = StandIn::new(&cluster, &[("srun", &srun), ("scontrol", &scontrol)]);
    let list = format!("{name}-[0-2]");
    let variables = [("SLURM_JOB_NODELIST", list.as_str()), ("SLURM_JOB_ID", "7")];
    let words = stand_in.start_and_stop(&cluster, &variables);
    assert_eq!(words[0], format!("scontrol show hostnames {list}"));
    let srun = words.iter().find(|word| word.starts_with("srun ")).unwrap();
    for option in [
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        &format!("--nodelist={name}-1,{name}-2"),
        "--overlap",
        "--no-kill",
    ] {
        assert!(
            srun.split(' ').any(|word| word == option),
            "{option}: {srun}"
        );
    }
    assert!(srun.ends_with(" agent"), "{srun}");
}

#[test]
fn the_bench_of_nodes_measures_every_row() {
    let Some(cluster) = cluster("weir bench --hosts", 3, &[], vec![]) else {
        return;
    };
    let report = cluster.dir().join("shared/bench.json");
    let mut command = cluster.node(0).command(weir_binary().unwrap());
    command.args(["bench", "--hosts", &cluster.host_list()]);
    command.args(["--quick", "--quiet", "--json", text(&report)]);
    let output = small(&mut command).output().unwrap();
    let table = said(&output);
    let report = std::fs::read_to_string(&report).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let hosts: Vec<&str> = cluster.nodes().iter().map(Node::host).collect();
    assert_eq!(report["nodes"], serde_json::json!(hosts));
    assert_eq!(report["one_machine"], true);
    assert!(
        report["verified_bytes"].as_u64() > Some(64 << 20),
        "{table}"
    );
    let rows = report["rows"].as_array().unwrap();
    let processors = std::thread::available_parallelism().unwrap().get();
    let few = (processors < hosts.len())
        .then(|| format!("{} servers, and {processors} processors", hosts.len()));
    for row in rows {
        let what = row["what"].as_str().unwrap();
        let samples = row["samples"].as_array().unwrap().len();
        match &few {
            // Here the bench must report the reason, and measure all the rest.
            Some(few) if what.contains("a core for each server") => {
                assert_eq!(samples, 0, "{what}\n{table}");
                assert_eq!(row["why_not"], few.as_str(), "{table}");
                let _ = writeln!(std::io::stderr(), "SKIP the row {what:?}: {few}");
            }
            // libfabric may be missing.
            _ => assert!(
                samples == 1 || what.contains("libfabric"),
                "{what}\n{table}"
            ),
        }
    }
    let by_core = |row: &serde_json::Value| row["what"].as_str().unwrap().contains("a core for");
    assert_eq!(rows.iter().filter(|row| by_core(row)).count(), 1, "{table}");
    let met = |part: &str| {
        let is_it = |row: &&serde_json::Value| row["what"].as_str().unwrap().contains(part);
        rows.iter().find(is_it).unwrap()["met"].clone()
    };
    // Counts, not times: they hold on any machine.
    assert_eq!(met("messages a write"), true, "{table}");
    assert_eq!(met("pieces by 32 processes: moved"), true, "{table}");
    assert_gone(&cluster);
    // A case without anything to compare.
    let mut command = cluster.node(0).command(weir_binary().unwrap());
    let output = command.args(["bench", "--servers", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let mut command = cluster.node(0).command(weir_binary().unwrap());
    let both = ["bench", "--servers", "2", "--fsync", "/tmp"];
    let output = command.args(both).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A stage is shared by three nodes if all see the files outside; else the first one moves everything.
#[test]
fn a_stage_is_shared_by_the_nodes_that_see_its_files() {
    let Some(cluster) = cluster("stages of several nodes", 3, &[], vec![]) else {
        return;
    };
    let weir = weir_binary().unwrap();
    let hosts = cluster.host_list();
    let script = format!(
        "set -e
        mkdir -p $1/in/sub
        # With a thread each they take much longer than it takes the other nodes to come.
        for n in $(seq 1000); do seq $n > $1/in/sub/$n; done
        for n in 1 2 3 4 5 6 7 8; do head -c 3M /dev/urandom > $1/in/middle.$n; done
        truncate -s 300M $1/in/large
        for at in 0 70 299; do
            head -c 999999 /dev/urandom | dd of=$1/in/large bs=1M seek=$at conv=notrunc status=none
        done
        {weir} stage in --threads 1 --json $1/in /weir
        {weir} stage out --threads 1 --json --verify /weir/in $1/out/
        diff -r $1/in $1/out/in >&2",
        weir = weir.display()
    );
    // Each node has a /tmp of its own.
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    for (nodes, dir) in [(3, shared.path()), (1, Path::new("/tmp/own"))] {
        let mut command = cluster.node(0).command(&weir);
        command.args([
            "run", "--hosts", &hosts, "--", "bash", "-c", &script, "bash",
        ]);
        let output = small(command.arg(dir)).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        let text = said(&output);
        let mut lines = text.lines().filter(|line| line.starts_with('{'));
        for direction in ["in", "out"] {
            let summary: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
            let shares = summary["nodes"].as_array().unwrap();
            assert_eq!(shares.len(), nodes, "{direction}: {summary}{told}");
            let bytes = shares.iter().map(|share| share["bytes"].as_u64().unwrap());
            let bytes: Vec<u64> = bytes.collect();
            assert!(
                bytes.iter().all(|bytes| *bytes > 0),
                "{direction}: {summary}"
            );
            assert_eq!(bytes.iter().sum::<u64>(), summary["bytes"], "{direction}");
            assert_eq!(summary["files"], 1009, "{direction}: {summary}");
        }
        // Those of the stage out may come when it has ended.
        let refusals = told.matches("does not see /tmp/own").count();
        let expected = if nodes == 1 { 2..=4 } else { 0..=0 };
        assert!(expected.contains(&refusals), "{told}");
        assert_gone(&cluster);
    }
}

/// Files that three nodes wrote are moved by all of them, if all see the target; else by the first.
#[test]
fn a_drain_is_shared_by_the_nodes_that_see_its_target() {
    let needs = [needs::MPICH_RUN];
    let Some(cluster) = cluster("drains of several nodes", 3, &needs, vec![]) else {
        return;
    };
    let weir = weir_binary().unwrap();
    let hosts = cluster.host_list();
    let script = format!(
        "mpiexec.mpich -hosts {hosts} -n 3 sh -c '
            mkdir /weir/$PMI_RANK
            for n in $(seq 300); do seq $n > /weir/$PMI_RANK/$n; done
            head -c 20M /dev/urandom > /weir/large.$PMI_RANK'
        # Large enough to be cut.
        truncate -s 600M /weir/huge
        for at in 0 200 599; do
            head -c 999999 /dev/urandom | dd of=/weir/huge bs=1M seek=$at conv=notrunc status=none
        done
        for try in $(seq 100); do
            {weir} drain --wait > /dev/null || exit
            {weir} drain --status --json | grep -q '\"movers\":'$0 && break
            sleep 0.1
        done
        mpiexec.mpich -hosts {hosts} -n 3 sh -c '
            for n in $(seq 300); do seq 2 $n > /weir/$PMI_RANK/$n; done'
        {weir} drain --wait > /dev/null || exit
        {weir} drain --status --json
        cp -r /weir/. $1",
        weir = weir.display()
    );
    // Each node has a /tmp of its own.
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    let copy = tempfile::tempdir_in("/var/tmp").unwrap();
    for (movers, target) in [
        ("2", shared.path().join("out")),
        ("0", PathBuf::from("/tmp/out")),
    ] {
        let copy = copy.path().join(movers);
        std::fs::create_dir(&copy).unwrap();
        let mut command = cluster.node(0).command(&weir);
        command.args(["run", "--hosts", &hosts, "--drain-to"]);
        command
            .arg(&target)
            .args(["--", "bash", "-c", &script, movers])
            .arg(&copy);
        let output = small(&mut command).output().unwrap();
        let text = said(&output);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains(&format!("\"movers\":{movers}")),
            "{text}{told}"
        );
        assert_eq!(
            told.matches("does not see /tmp/out").count(),
            if movers == "0" { 2 } else { 0 }
        );
        let there = match target.strip_prefix("/tmp") {
            Ok(below) => cluster.node(0).dir().join("tmp").join(below),
            Err(_) => target.clone(),
        };
        let same = Command::new("diff")
            .arg("-r")
            .args([&there, &copy])
            .output()
            .unwrap();
        assert!(
            same.status.success(),
            "{}",
            String::from_utf8_lossy(&same.stdout)
        );
    }
    assert_gone(&cluster);
}

/// With nodes on which no program runs (`--movers`), these alone read what programs wrote on the others.
#[test]
fn movers_on_nodes_of_their_own_copy_what_programs_write_on_others() {
    let needs = [needs::MPICH_RUN];
    let Some(cluster) = cluster("movers on nodes of their own", 4, &needs, vec![]) else {
        return;
    };
    let weir = weir_binary().unwrap();
    let all = cluster.host_list();
    let hosts: Vec<&str> = all.split(',').collect();
    let (programs, movers) = (hosts[..2].join(","), hosts[2..].join(","));
    let script = format!(
        "for try in $(seq 100); do
            {weir} drain --status --json | grep -q '\"movers\":2' && break
            sleep 0.1
        done
        mpiexec.mpich -hosts {programs} -n 2 sh -c '
            mkdir /weir/$PMI_RANK
            for n in $(seq 300); do seq $n > /weir/$PMI_RANK/$n; done
            head -c 20M /dev/urandom > /weir/large.$PMI_RANK'
        {weir} drain --wait > /dev/null || exit
        {weir} status --json
        cp -r /weir/. $0",
        weir = weir.display()
    );
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    let (target, copy) = (shared.path().join("out"), shared.path().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    let mut command = cluster.node(0).command(&weir);
    command.args([
        "run",
        "--hosts",
        &programs,
        "--movers",
        &movers,
        "--drain-to",
    ]);
    command.arg(&target);
    command.args(["--", "bash", "-c", &script]).arg(&copy);
    let text = said(&small(&mut command).output().unwrap());
    let status: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    let servers = status["each"].as_array().unwrap();
    let read = |server: &serde_json::Value| server["counters"]["bytes_read"].as_u64().unwrap();
    let read: Vec<u64> = servers.iter().map(read).collect();
    assert_eq!((read.len(), &read[..2]), (4, &[0, 0][..]), "{read:?}");
    assert!(
        read[2] > 0 && read[3] > 0 && read[2] + read[3] > 40 << 20,
        "{read:?}"
    );
    let same = Command::new("diff")
        .arg("-r")
        .args([&target, &copy])
        .output();
    let same = same.unwrap();
    assert!(
        same.status.success(),
        "{}",
        String::from_utf8_lossy(&same.stdout)
    );
    assert_gone(&cluster);
}

/// Programs on three nodes see one tree over an elevated directory, whichever of them changed it.
#[test]
fn an_elevated_directory_is_shared_by_nodes() {
    let needs = [needs::MPICH_RUN];
    let Some(cluster) = cluster("an elevated directory", 3, &needs, vec![]) else {
        return;
    };
    let weir = weir_binary().unwrap();
    let hosts = cluster.host_list();
    // Each node has a /tmp of its own.
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    let pfs = shared.path().canonicalize().unwrap().join("pfs");
    std::fs::create_dir_all(pfs.join("old/dir")).unwrap();
    for name in ["old/kept", "old/removed", "old/dir/replaced"] {
        std::fs::write(pfs.join(name), "of the PFS").unwrap();
    }
    let script = format!(
        "set -e
        cd {pfs}
        mpiexec.mpich -hosts {hosts} -n 3 sh -ec '
            cd {pfs}
            mkdir $PMI_RANK
            for n in $(seq 300); do seq $n > $PMI_RANK/$n; done
            echo $PMI_RANK > old/dir/of.$PMI_RANK
            case $PMI_RANK in
            0) rm old/removed ;;
            1) echo new > old/dir/tmp && mv old/dir/tmp old/dir/replaced ;;
            2) mkdir old/made && echo 2 > old/made/file ;;
            esac'
        mpiexec.mpich -hosts {hosts} -n 3 sh -ec '
            cd {pfs}
            test \"$(ls -x old)\" = \"dir  kept  made\"
            test \"$(ls -x old/dir)\" = \"of.0  of.1  of.2  replaced\"
            test \"$(cat old/dir/replaced old/kept old/made/file)\" = \"$(printf \"new\\nof the PFS2\")\"
            test $(find . -type f | wc -l) = 906
            next=$((($PMI_RANK + 1) % 3))
            for n in $(seq 300); do test \"$(cat $next/$n | wc -l)\" = $n; done
            rm -r $next
            echo done > $next'
        test \"$(cat 0 1 2)\" = \"$(printf \"done\\ndone\\ndone\")\"
        {weir} drain --wait > /dev/null",
        pfs = pfs.display(),
        weir = weir.display()
    );
    let mut command = cluster.node(0).command(&weir);
    command
        .args(["run", "--hosts", &hosts, "--elevate"])
        .arg(&pfs);
    command.args(["--", "bash", "-c", &script]);
    let output = small(&mut command).output().unwrap();
    said(&output);
    let listed = Command::new("find").arg(&pfs).args(["-type", "f"]).output();
    let mut names: Vec<String> = String::from_utf8(listed.unwrap().stdout)
        .unwrap()
        .lines()
        .map(|line| line.replace(&format!("{}/", pfs.display()), ""))
        .collect();
    names.sort_unstable();
    let wanted = [
        "0",
        "1",
        "2",
        "old/dir/of.0",
        "old/dir/of.1",
        "old/dir/of.2",
        "old/dir/replaced",
        "old/kept",
        "old/made/file",
    ];
    assert_eq!(names, wanted);
    let replaced = std::fs::read_to_string(pfs.join("old/dir/replaced"));
    assert_eq!(replaced.unwrap(), "new\n");
    assert_gone(&cluster);
}

/// A run on all nodes whose programs have written, and whose root or all of whose processes are then killed.
struct KilledRun<'c> {
    cluster: &'c Cluster,
    pfs: PathBuf,
}

impl KilledRun<'_> {
    const FILES: usize = 300;

    /// Begins a run that elevates the directory, if it `elevates`, and kills it: on the first node, or on all of them.
    fn kill(&self, elevates: bool, everywhere: bool) {
        let _ = std::fs::remove_dir_all(&self.pfs);
        std::fs::create_dir_all(&self.pfs).unwrap();
        let (weir, hosts) = (weir_binary().unwrap(), self.cluster.host_list());
        let mut command = self.cluster.node(0).command(&weir);
        command.args(["run", "--hosts", &hosts]);
        let dir = match elevates {
            true => {
                command.arg("--elevate").arg(&self.pfs);
                self.pfs.clone()
            }
            false => PathBuf::from("/weir"),
        };
        let script = format!(
            ": > {dir}/shared
            mpiexec.mpich -hosts {hosts} -n 3 sh -ec '
                cd {dir}
                mkdir $PMI_RANK
                dd if=/dev/zero of=shared bs=64K count=1 seek=$PMI_RANK conv=notrunc status=none
                for n in $(seq {files}); do seq $n > $PMI_RANK/$n; done
                seq 300000 > large.$PMI_RANK'
            echo written
            exec sleep 1000",
            dir = dir.display(),
            files = Self::FILES
        );
        command.args(["--", "bash", "-c", &script]);
        command.env("WEIR_DRAIN_WHILE_RUNNING", "false");
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = small(&mut command).spawn().unwrap();
        let mut line = String::new();
        let out = run.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "written\n");
        // Of the first node the run and its agent only.
        let (nodes, killed) = match everywhere {
            true => (usize::MAX, "weir (run|agent|server)|sleep"),
            false => (1, "weir (run|agent)|sleep"),
        };
        for node in self.cluster.nodes().iter().take(nodes) {
            let mut kill = node.command("pkill");
            kill.args(["-KILL", "-f", killed]).output().unwrap();
        }
        run.wait().unwrap();
        self.await_end();
    }

    /// Waits until no server is left on any node.
    fn await_end(&self) {
        let nodes = self.cluster.nodes().iter();
        for node in nodes.filter(|node| node.pid().is_some()) {
            let is_there = || {
                let mut look = node.command("pgrep");
                look.args(["-f", "[w]eir (agent|server)"])
                    .output()
                    .unwrap()
                    .status
                    .success()
            };
            guard::wait_until("the servers of a node end", || !is_there());
        }
    }

    fn weir(&self, node: usize, arguments: &[&str]) -> Output {
        let mut command = self.cluster.node(node).command(weir_binary().unwrap());
        small(command.args(arguments)).output().unwrap()
    }

    fn has(&self, rank: usize) -> bool {
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let dir = self.pfs.join(rank.to_string());
        (1..=Self::FILES).all(|n| text(dir.join(n.to_string())) == numbers(n))
            && text(self.pfs.join(format!("large.{rank}"))) == numbers(300_000)
    }
}

/// The output of `seq`.
fn numbers(last: usize) -> String {
    let lines: Vec<String> = (1..=last).map(|n| n.to_string()).collect();
    lines.join("\n") + "\n"
}

/// Runs of three nodes that are killed, on the first one or everywhere: what is to be moved stays on all nodes until it
/// is, by a command on any of them.
#[test]
fn what_a_run_killed_on_its_nodes_had_not_moved_is_recovered() {
    let needs = [needs::MPICH_RUN];
    let Some(cluster) = cluster("recovery of several nodes", 3, &needs, vec![]) else {
        return;
    };
    // Each node has a /tmp of its own.
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    let run = KilledRun {
        cluster: &cluster,
        pfs: shared.path().canonicalize().unwrap().join("pfs"),
    };
    for (everywhere, node) in [(false, 0), (true, 0), (true, 2), (false, 1)] {
        run.kill(true, everywhere);
        assert_eq!(std::fs::read_dir(&run.pfs).unwrap().count(), 0);
        let list = said(&run.weir(node, &["recover", "--list"]));
        let hosts = cluster.host_list().replace(',', ", ");
        assert!(
            list.contains(&format!("its 3 servers on {hosts} were killed")),
            "{list}"
        );
        assert!(
            list.contains(&format!("files for {}", run.pfs.display())),
            "{list}"
        );
        // The next job on these nodes has nothing to do with it.
        said(&run.weir(0, &["run", "--hosts", &cluster.host_list(), "true"]));
        let recovered = run.weir(node, &["recover"]);
        said(&recovered);
        assert!((0..3).all(|rank| run.has(rank)), "{recovered:?}");
        assert_gone(&cluster);
    }
    run.kill(false, false);
    assert_gone(&cluster);
    run.kill(true, true);
    let list = said(&run.weir(1, &["recover", "--list"]));
    let name = list.split(' ').nth(2).unwrap();
    said(&run.weir(1, &["stop", "--no-drain", name]));
    assert_gone(&cluster);
}

/// A node that is lost with what it had: the files of the others are moved, and the instance stays until it is given up.
#[test]
fn what_the_other_nodes_have_is_recovered_without_a_lost_one() {
    let needs = [needs::MPICH_RUN];
    let Some(mut cluster) = cluster("recovery without a node", 3, &needs, vec![]) else {
        return;
    };
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    let pfs = shared.path().canonicalize().unwrap().join("pfs");
    KilledRun {
        cluster: &cluster,
        pfs: pfs.clone(),
    }
    .kill(true, true);
    cluster.lose(1).unwrap();
    let run = KilledRun {
        cluster: &cluster,
        pfs,
    };
    let host = cluster.node(1).host();
    let impatient = ["--set", "launch.deadline_s=10"];
    let recovered = run.weir(0, &[&["recover"], &impatient[..]].concat());
    let told = String::from_utf8_lossy(&recovered.stderr);
    assert_eq!(recovered.status.code(), Some(7), "{told}");
    assert!(
        told.contains(&format!("on {host} cannot be brought back")),
        "{told}"
    );
    // Each file that is there is whole, and those of the other nodes that are not are named.
    let mut moved = 0;
    for (rank, n) in [0, 2]
        .into_iter()
        .flat_map(|rank| (1..=KilledRun::FILES).map(move |n| (rank, n)))
    {
        let name = format!("{rank}/{n}");
        match std::fs::read_to_string(run.pfs.join(&name)) {
            Ok(is) => {
                assert_eq!(is, numbers(n), "{name}");
                moved += 1;
            }
            Err(_) => assert!(told.contains(&format!("/{name}: ")), "{name}: {told}"),
        }
    }
    assert!(moved > 0, "{told}");
    let [shared, bytes] = ["/shared: ", "; these bytes cannot be read: 65536 to 131072"];
    let mut lines = told.lines();
    let says = lines.any(|line| line.contains(shared) && line.ends_with(bytes));
    assert!(says, "{told}");
    let list = said(&run.weir(2, &["recover", "--list"]));
    let name = list.split(' ').nth(2).unwrap();
    let stopped = run.weir(2, &[&["stop", "--no-drain", name], &impatient[..]].concat());
    let told = String::from_utf8_lossy(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(1), "{told}");
    assert!(
        told.contains(&format!("on {host} left is not cleared")),
        "{told}"
    );
    assert_gone(&cluster);
}

/// The same of the first node, where the run was and whose server has the roots of all trees.
#[test]
fn what_the_other_nodes_have_is_recovered_without_the_first() {
    let needs = [needs::MPICH_RUN];
    let Some(mut cluster) = cluster("recovery without the first node", 3, &needs, vec![]) else {
        return;
    };
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    let pfs = shared.path().canonicalize().unwrap().join("pfs");
    KilledRun {
        cluster: &cluster,
        pfs: pfs.clone(),
    }
    .kill(true, true);
    cluster.lose(0).unwrap();
    let run = KilledRun {
        cluster: &cluster,
        pfs,
    };
    let host = cluster.node(0).host();
    let impatient = ["--set", "launch.deadline_s=10"];
    for node in [1, 2] {
        let recovered = run.weir(node, &[&["recover"], &impatient[..]].concat());
        let told = String::from_utf8_lossy(&recovered.stderr);
        assert_eq!(recovered.status.code(), Some(7), "{told}");
        let lost = format!("server 0 on {host} cannot be brought back");
        assert!(told.contains(&lost), "{told}");
        // Each file that is there is whole. Names of the others are at the lost node, or they have bytes there and are
        // named.
        let of_node = |rank: usize| {
            let small = (1..=KilledRun::FILES).map(move |n| (format!("{rank}/{n}"), n));
            small.chain([(format!("large.{rank}"), 300_000)])
        };
        let mut moved = 0;
        for (name, n) in [1, 2].into_iter().flat_map(of_node) {
            if let Ok(is) = std::fs::read_to_string(run.pfs.join(&name)) {
                assert_eq!(is, numbers(n), "{name}");
                moved += 1;
            }
        }
        assert!(moved > 0, "{told}");
        assert!(of_node(0).all(|(name, _)| !run.pfs.join(name).exists()));
    }
    let list = said(&run.weir(2, &["recover", "--list"]));
    let name = list.split(' ').nth(2).unwrap();
    let stopped = run.weir(2, &[&["stop", "--no-drain", name], &impatient[..]].concat());
    let told = String::from_utf8_lossy(&stopped.stderr);
    assert_eq!(stopped.status.code(), Some(1), "{told}");
    assert!(
        told.contains(&format!("on {host} left is not cleared")),
        "{told}"
    );
    assert_gone(&cluster);
}
