//! The plan that a seed draws: a cluster, its programs, network faults, and other faults with their
//! times.
//!
//! Each client draws its operations from a sequence of its own. So a plan can be reduced by
//! clients, operations and faults, and the rest behaves as before.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_core::names::Visibility;
use weir_core::types::Rank;
use weir_fabric::sim::rng::SeededRng;
use weir_fabric::sim::NetworkFaults;

/// The most servers.
const SERVERS: u64 = 8;

/// A slowdown by this factor or more may delay replies beyond their deadline.
const SLOW: u32 = 32;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Two servers cannot reach each other.
    Cut(Rank, Rank),
    /// A server is cut off from all others.
    Alone(Rank),
    /// Messages from and to a server are slower by a factor.
    Slow(Rank, u32),
    /// A client is killed.
    KillClient(usize),
    /// A server and its clients are killed and do not come back.
    KillServer(Rank),
    /// The same as [`FaultKind::KillServer`], and the node is gone: it does not refuse connections.
    KillNode(Rank),
    /// A server is killed, and restarted on its node when the fault ends; its clients live.
    Restart(Rank, Kill),
}

/// The way in which a restarted server is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kill {
    /// Killed at one of its next commits instead of at once: see
    /// [`crate::journal::KillSwitch::arm`].
    pub kill_after: Option<u32>,
    /// The number of times that it is killed again while it restarts.
    pub kills_at_restart: u32,
}

impl FaultKind {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            FaultKind::Cut(..) => "cut",
            FaultKind::Alone(_) => "alone",
            FaultKind::Slow(..) => "slow",
            FaultKind::KillClient(_) => "client killed",
            FaultKind::KillServer(_) => "server killed",
            FaultKind::KillNode(_) => "node killed",
            FaultKind::Restart(
                _,
                Kill {
                    kills_at_restart: 1..,
                    ..
                },
            ) => "server restarted twice",
            FaultKind::Restart(
                _,
                Kill {
                    kill_after: Some(_),
                    ..
                },
            ) => "server restarted from a commit",
            FaultKind::Restart(..) => "server restarted",
        }
    }

    /// Returns true if calls may fail because of the fault.
    pub fn fails_calls(&self) -> bool {
        match self {
            FaultKind::KillClient(_) => false,
            // Replies may come after the deadline.
            FaultKind::Slow(_, times) => *times >= SLOW,
            _ => true,
        }
    }

    /// The affected servers.
    fn servers(&self) -> Vec<Rank> {
        match *self {
            FaultKind::Cut(one, other) => vec![one, other],
            FaultKind::Alone(rank)
            | FaultKind::Slow(rank, _)
            | FaultKind::KillServer(rank)
            | FaultKind::KillNode(rank)
            | FaultKind::Restart(rank, _) => vec![rank],
            FaultKind::KillClient(_) => Vec::new(),
        }
    }

    /// Returns true if a server restarts from its journal.
    pub fn restarts(&self) -> bool {
        matches!(self, FaultKind::Restart(..))
    }

    /// Returns true if a server is killed for good.
    pub fn kills_server(&self) -> bool {
        matches!(self, FaultKind::KillServer(_) | FaultKind::KillNode(_))
    }
}

/// A fault with its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The start.
    pub at: Duration,
    /// The duration, if the fault ends.
    pub lasts: Duration,
    /// The kind.
    pub what: FaultKind,
}

/// The operations of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Everything.
    All,
    /// Mostly appends to a few files.
    Logs,
    /// Mostly making and renaming directories and files.
    Moves,
    /// Mostly writing and truncating a few files.
    Cuts,
}

/// The programs' use of lamination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaminationUse {
    /// No lamination.
    None,
    /// Programs laminate files.
    Any,
    /// Programs laminate files, and other nodes see files only then, instead of by [`Plan::raw`].
    Ral,
}

/// A client program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its number.
    pub number: usize,
    /// Its node.
    pub rank: Rank,
    /// The seed of its operations.
    pub seed: u64,
    /// The number of its operations.
    pub operations: usize,
}

/// The parameters of a run.
// Each is a choice of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The number of servers.
    pub servers: u16,
    /// The programs.
    pub clients: Vec<Client>,
    /// Storage units on each node.
    pub units: usize,
    /// Memory is lent warm.
    pub warm: bool,
    /// Longest pause of a program between two operations.
    pub pause: Duration,
    /// The operations of programs.
    pub workload: Workload,
    /// Files are raw: a write is visible everywhere when it has returned.
    pub raw: bool,
    /// Programs lock files.
    pub locks: bool,
    /// The programs' use of lamination.
    pub laminations: LaminationUse,
    /// Programs ask how far the writing of files is, as a drain does.
    pub asks_states: bool,
    /// Programs take up directories of an elevated tree.
    pub elevates: bool,
    /// A program moves files to the parallel file system, and has their storage freed.
    pub evicts: bool,
    /// Programs write pieces at equal distances, other operations between them, of which the last one may be shorter.
    pub strides: bool,
    /// A server starts a new journal after this many bytes.
    pub journal_bytes: usize,
    /// The faults of messages.
    pub network_faults: NetworkFaults,
    /// The other faults.
    pub faults: Vec<Fault>,
}

/// The parts of a plan to leave out.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Exclusions {
    /// Clients.
    pub clients: Vec<usize>,
    /// Faults.
    pub faults: Vec<usize>,
    /// The limit of operations of each client.
    pub operations: Option<usize>,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn from_seed(seed: u64) -> Plan {
        let rng = SeededRng::new(seed);
        let servers = u16::try_from(2 + rng.below(SERVERS - 1)).expect("few");
        let rank =
            |rng: &SeededRng| Rank(u16::try_from(rng.below(u64::from(servers))).expect("few"));
        let pause = Duration::from_millis([1, 20, 400][rng.pick(3)]);
        let count = 2 + rng.pick(6);
        let operations = 10 + rng.pick(40);
        let clients = (0..count)
            .map(|number| Client {
                number,
                rank: rank(&rng),
                seed: rng.next(),
                operations,
            })
            .collect();
        let units = [24, 100, 1000][rng.pick(3)];
        let warm = rng.chance(500);
        let network_faults = draw_network_faults(&rng);
        let span = pause * u32::try_from(operations).expect("few") / 2;
        let faults: Vec<Fault> = (0..rng.pick(4))
            .map(|_| {
                let at = rng.duration(Duration::ZERO, span);
                let longest = [300, 3_000, 12_000][rng.pick(3)];
                let lasts = rng.duration(Duration::from_millis(1), Duration::from_millis(longest));
                let what = match rng.below(12) {
                    0..4 => FaultKind::Cut(rank(&rng), rank(&rng)),
                    4..6 => FaultKind::Alone(rank(&rng)),
                    6..8 => FaultKind::Slow(rank(&rng), 1 << rng.below(10)),
                    8..10 => FaultKind::KillClient(rng.pick(count)),
                    10 => FaultKind::KillServer(rank(&rng)),
                    _ => FaultKind::KillNode(rank(&rng)),
                };
                Fault { at, lasts, what }
            })
            .collect();
        // Drawn last, so that older seeds keep the rest of their plans.
        let workload = match rng.chance(200) {
            true => Workload::Logs,
            false => Workload::All,
        };
        let restarts = if rng.chance(400) { 1 + rng.pick(3) } else { 0 };
        let mut restarts: Vec<Fault> = (0..restarts)
            .map(|_| {
                let at = rng.duration(Duration::ZERO, span);
                let longest = [30, 1_000, 6_000][rng.pick(3)];
                let lasts = rng.duration(Duration::from_millis(1), Duration::from_millis(longest));
                let what = FaultKind::Restart(rank(&rng), Kill::default());
                Fault { at, lasts, what }
            })
            .collect();
        let journal_bytes = [1 << 10, 8 << 10, 8 << 20][rng.pick(3)];
        for restart in &mut restarts {
            if let FaultKind::Restart(_, kill) = &mut restart.what {
                kill.kill_after = rng
                    .chance(500)
                    .then(|| 1 + u32::try_from(rng.below(40)).expect("few"));
                kill.kills_at_restart = u32::from(rng.chance(150));
            }
        }
        let faults = faults.into_iter().chain(restarts).collect();
        let raw = rng.chance(500);
        let locks = rng.chance(400);
        let laminations = match rng.chance(300) {
            true if rng.chance(300) => LaminationUse::Ral,
            true => LaminationUse::Any,
            false => LaminationUse::None,
        };
        Plan {
            seed,
            servers,
            clients,
            units,
            warm,
            pause,
            workload,
            raw,
            locks,
            laminations,
            // These are drawn by nobody, so that each seed is the run that it was before.
            asks_states: false,
            elevates: false,
            evicts: false,
            strides: false,
            journal_bytes,
            network_faults,
            faults,
        }
    }

    /// The plan without the excluded parts.
    #[must_use]
    pub fn without(mut self, without: &Exclusions) -> Plan {
        self.clients
            .retain(|client| !without.clients.contains(&client.number));
        for client in &mut self.clients {
            client.operations = without
                .operations
                .map_or(client.operations, |most| client.operations.min(most));
        }
        let mut number = 0..;
        self.faults
            .retain(|_| !without.faults.contains(&number.next().unwrap_or(0)));
        self
    }

    /// The plan without faults that lose calls to servers.
    #[must_use]
    pub fn mild(mut self) -> Plan {
        self.faults.retain(|fault| !fault.what.fails_calls());
        self
    }

    /// The plan with programs that ask how far the writing of files is.
    #[must_use]
    pub fn asking(mut self) -> Plan {
        self.asks_states = true;
        self
    }

    /// The plan with programs that take up directories of an elevated tree.
    #[must_use]
    pub fn elevating(mut self) -> Plan {
        self.elevates = true;
        self
    }

    /// The plan with a program that has the storage of files freed; with an elevated tree, which such files are of.
    #[must_use]
    pub fn evicting(mut self) -> Plan {
        (self.elevates, self.evicts) = (true, true);
        self
    }

    /// The plan with programs that write pieces at equal distances.
    #[must_use]
    pub fn striding(mut self) -> Plan {
        self.strides = true;
        self
    }

    /// The plan without locks.
    #[must_use]
    pub fn without_locks(mut self) -> Plan {
        self.locks = false;
        self
    }

    /// The plan without lamination.
    #[must_use]
    pub fn without_laminations(mut self) -> Plan {
        self.laminations = LaminationUse::None;
        self
    }

    /// The visibility of files.
    pub fn visibility(&self) -> Visibility {
        match (self.laminations, self.raw) {
            (LaminationUse::Ral, _) => Visibility::ReadAfterLaminate,
            (_, true) => Visibility::ReadAfterWrite,
            (_, false) => Visibility::ReadAfterSync,
        }
    }

    /// The plan with at most one server that restarts, if it loses no calls otherwise.
    #[must_use]
    pub fn with_one_restart(mut self) -> Plan {
        let others = |fault: &&Fault| fault.what.fails_calls() && !fault.what.restarts();
        let mut left = usize::from(self.faults.iter().find(others).is_none());
        self.faults.retain(|fault| {
            let stays = !fault.what.restarts() || left > 0;
            left -= usize::from(stays && fault.what.restarts());
            stays
        });
        self
    }

    /// The plan with programs that mostly rename, and with no faults but servers that restart,
    /// several at about the same time.
    #[must_use]
    pub fn moving(mut self) -> Plan {
        let rng = SeededRng::new(!self.seed);
        let times = Duration::from_millis([1, 20][rng.pick(2)]);
        let operations = self.clients.first().map_or(0, |client| client.operations);
        let span = times * u32::try_from(operations).expect("few") / 2;
        (self.workload, self.pause) = (Workload::Moves, times);
        let at = rng.duration(Duration::ZERO, span);
        let restart = |number: usize| {
            let longest = [5, 100, 3_000][rng.pick(3)];
            let lasts = rng.duration(Duration::from_millis(1), Duration::from_millis(longest));
            let rank = Rank(u16::try_from(rng.below(u64::from(self.servers))).expect("few"));
            let kill_after = 1 + u32::try_from(rng.below(30)).expect("few");
            let kill = Kill {
                kill_after: rng.chance(800).then_some(kill_after),
                kills_at_restart: u32::from(rng.chance(100)),
            };
            Fault {
                at: at + times * u32::try_from(rng.pick(1 + number * 3)).expect("few"),
                lasts,
                what: FaultKind::Restart(rank, kill),
            }
        };
        self.faults = (0..2 + rng.pick(3)).map(restart).collect();
        self
    }

    /// The same as [`Plan::moving`], but the programs write and truncate a few files.
    #[must_use]
    pub fn cutting(self) -> Plan {
        let workload = Workload::Cuts;
        Plan {
            workload,
            ..self.moving()
        }
    }

    /// The plan without servers that restart.
    #[must_use]
    pub fn without_restarts(mut self) -> Plan {
        self.faults.retain(|fault| !fault.what.restarts());
        self
    }

    /// The plan with servers that are killed between two tasks and restart at once.
    #[must_use]
    pub fn with_plain_kills(mut self) -> Plan {
        for fault in &mut self.faults {
            if let FaultKind::Restart(_, kill) = &mut fault.what {
                *kill = Kill::default();
            }
        }
        self
    }

    /// Returns true if calls may fail because a server is lost.
    pub fn fails_calls(&self) -> bool {
        self.faults.iter().any(|fault| fault.what.fails_calls())
    }

    /// The servers whose calls may fail at some time.
    pub fn troubled(&self) -> BTreeSet<Rank> {
        let faults = self.faults.iter().filter(|fault| fault.what.fails_calls());
        faults.flat_map(|fault| fault.what.servers()).collect()
    }

    /// Returns true if a server is lost for good.
    pub fn kills_server(&self) -> bool {
        self.faults.iter().any(|fault| fault.what.kills_server())
    }
}

fn draw_network_faults(rng: &SeededRng) -> NetworkFaults {
    let (us, ms) = (Duration::from_micros, Duration::from_millis);
    match rng.below(4) {
        0 => NetworkFaults::NONE,
        1 => NetworkFaults {
            delay: (us(10), ms(5)),
            ..NetworkFaults::NONE
        },
        2 => NetworkFaults {
            delay: (us(10), ms(2)),
            breaks_per_mille: 3,
            notice: ms(50),
            twice_per_mille: 20,
            overtakes_per_mille: 100,
        },
        _ => NetworkFaults {
            delay: (us(100), ms(40)),
            breaks_per_mille: 10,
            notice: ms(50),
            twice_per_mille: 100,
            overtakes_per_mille: 300,
        },
    }
}
