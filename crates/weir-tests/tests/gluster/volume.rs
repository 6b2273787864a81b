//! A GlusterFS volume of two bricks on a node, and a mount of it on another one.
//!
//! Invariants:
//! - its daemons run in the namespaces of a test cluster (`weir-cluster`), which end with the test, however
//!   that ends: with them the mount, the addresses and the devices. So two volumes at a time do not meet;
//! - GlusterFS's own directories of the machine (/var/lib/glusterd, /var/log/glusterfs, /run) are covered on
//!   the node by those of the cluster, and never written.
//!
//! Left out: several servers of one volume, and glusterd's end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_cluster::{can_test_with, missing, skip_for_kernel, Cluster, Node, Spec};
use weir_faultfs::why_no_mount;
use weir_tests::needs::{self, missing as missing_packages};

use super::room::{said, wait_until};

/// The name of the volume.
const VOLUME: &str = "pfs";
/// The number of its bricks.
pub const BRICKS: usize = 2;

/// How the bricks share the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each file is on one brick, by the hash of its name.
    Distributed,
    /// Each file is on both.
    Replicated,
}

/// A volume that is mounted; dropping it ends all that belongs to it.
pub struct GlusterFs {
    cluster: Cluster,
}

impl GlusterFs {
    /// Starts a volume, and mounts it; `None` if this machine cannot.
    pub fn up(what: &str, layout: Layout) -> Option<GlusterFs> {
        let mut lacks = missing(false);
        let packages = missing_packages(&[needs::GLUSTERD, needs::GLUSTERFS, needs::GLUSTER]);
        if !packages.is_empty() {
            lacks.push(format!("apt-get install {}", packages.join(" ")));
        }
        if !can_test_with(what, &lacks) {
            return None;
        }
        if let Some(why) = why_no_mount() {
            skip_for_kernel(what, &why);
            return None;
        }
        let spec = Spec {
            nodes: 2,
            ..Spec::default()
        };
        let gluster = GlusterFs {
            cluster: Cluster::up(&spec).unwrap(),
        };
        gluster.start_daemon();
        gluster.create_volume(layout);
        gluster.mount();
        Some(gluster)
    }

    /// The node of the mount.
    pub fn client(&self) -> &Node {
        self.cluster.node(1)
    }

    fn server(&self) -> &Node {
        self.cluster.node(0)
    }

    /// The mount, as programs of the client's node see it.
    pub fn path(&self) -> PathBuf {
        self.client().storage().join("mount")
    }

    /// A path of the client's node as the test sees it.
    pub fn outside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.client().pid().unwrap()));
        root.join(path.strip_prefix("/").unwrap())
    }

    /// The directory of a brick.
    pub fn brick(&self, index: usize) -> PathBuf {
        self.server().storage().join(format!("brick-{index}"))
    }

    fn start_daemon(&self) {
        let script = "
            mkdir -p $1/state $1/log/bricks /run/gluster
            mount --bind $1/state /var/lib/glusterd
            mount --bind $1/log /var/log/glusterfs
            glusterd --log-file $1/log/glusterd.log --pid-file /run/glusterd.pid";
        self.on_server(script);
        // The first of its answers; before it, the command fails after a while by itself.
        wait_until("an answer of glusterd", || {
            let mut list = self.gluster(&["volume", "list"]);
            list.output().unwrap().status.success()
        });
    }

    fn create_volume(&self, layout: Layout) {
        let address = self.server().address();
        let bricks = (0..BRICKS).map(|index| format!("{address}:{}", self.brick(index).display()));
        let mut create = self.gluster(&["volume", "create", VOLUME]);
        if layout == Layout::Replicated {
            create.args(["replica", &BRICKS.to_string()]);
        }
        // By force: GlusterFS wants bricks to be file systems of their own.
        said(create.args(bricks).arg("force"));
        said(&mut self.gluster(&["volume", "start", VOLUME]));
    }

    fn mount(&self) {
        fs::create_dir(self.path()).unwrap();
        let log = self.client().storage().join("client.log");
        let mut mount = self.client().command("glusterfs");
        mount
            .arg(format!("--volfile-server={}", self.server().address()))
            .arg(format!("--volfile-id={VOLUME}"))
            .arg("--log-file")
            .arg(log)
            .arg(self.path());
        said(&mut mount);
    }

    /// Limits what the client sends, in tc(8)'s notation: `10mbit`.
    pub fn limit_rate(&self, rate: &str) {
        let script = "
            tc qdisc replace dev eth0 root handle 1: htb default 1
            tc class replace dev eth0 parent 1: classid 1:1 htb rate $1 burst 64k cburst 64k quantum 60000";
        let mut shell = self.client().command("sh");
        said(shell.args(["-ec", script, "sh", rate]));
    }

    /// Kills the process of a brick.
    pub fn kill_brick(&self, index: usize) {
        self.signal_brick(index, "KILL");
    }

    /// Has a brick answer nothing, as a node that hangs, until [`resume_brick`](Self::resume_brick).
    pub fn pause_brick(&self, index: usize) {
        self.signal_brick(index, "STOP");
    }

    /// Has it answer again.
    pub fn resume_brick(&self, index: usize) {
        self.signal_brick(index, "CONT");
    }

    fn signal_brick(&self, index: usize, signal: &str) {
        let script =
            format!("kill -{signal} $(cat /run/gluster/vols/{VOLUME}/*-brick-{index}.pid)");
        self.on_server(&script);
    }

    /// Starts the bricks that are not there, and waits until the mount has found them, which it looks for every
    /// few seconds.
    pub fn restart_bricks(&self) {
        said(&mut self.gluster(&["volume", "start", VOLUME, "force"]));
        // Each name belongs to one brick, by its hash: the names need all of them. They are made, since the mount
        // says of names whose brick is away that they do not exist.
        let mount = self.outside(&self.path());
        let is_taken = |n: u32| fs::write(mount.join(format!("probe.{n}")), b"").is_ok();
        wait_until("all bricks", || (0..16).all(is_taken));
        for n in 0..16 {
            fs::remove_file(mount.join(format!("probe.{n}"))).unwrap();
        }
    }

    /// GlusterFS's command on the server.
    fn gluster(&self, words: &[&str]) -> Command {
        let mut command = self.server().command("gluster");
        command.arg("--mode=script").args(words);
        command
    }

    /// Runs a script on the server; its first argument is the node's storage.
    fn on_server(&self, script: &str) {
        let mut shell = self.server().command("sh");
        said(
            shell
                .args(["-ec", script, "sh"])
                .arg(self.server().storage()),
        );
    }
}
