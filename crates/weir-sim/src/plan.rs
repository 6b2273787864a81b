//! What a seed draws: a cluster, who runs on it, the weather, and what goes wrong when.
//!
//! Each client draws what it does from a sequence of its own, so that a plan can be reduced,
//! by clients, by operations, by faults, and what is left does what it did.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_core::names::Visibility;
use weir_core::types::Rank;
use weir_fabric::sim::rng::SeededRng;
use weir_fabric::sim::NetworkFaults;

/// The most servers.
const SERVERS: u64 = 8;

/// Messages that take so many times as long may come too late to be answered in time.
const SLOW: u32 = 32;

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Two servers cannot reach each other.
    Cut(Rank, Rank),
    /// A server is cut off from all others.
    Alone(Rank),
    /// Messages from and to a server take so many times as long.
    Slow(Rank, u32),
    /// A client is killed.
    KillClient(usize),
    /// A server and its clients are killed and do not come back.
    KillServer(Rank),
    /// The same, and nothing of its node says so.
    KillNode(Rank),
    /// A server is killed, and started again on its node when the fault is over; its clients live.
    Restart(Rank, Kill),
}

/// How a server is killed that is started again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kill {
    /// Not at once, but over one of its next commits: see [`crate::journal::Fuse::light`].
    pub burns: Option<u32>,
    /// So many times it is killed again while it comes back.
    pub stumbles: u32,
}

impl Trouble {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Trouble::Cut(..) => "cut",
            Trouble::Alone(_) => "alone",
            Trouble::Slow(..) => "slow",
            Trouble::KillClient(_) => "client killed",
            Trouble::KillServer(_) => "server killed",
            Trouble::KillNode(_) => "node killed",
            Trouble::Restart(_, Kill { stumbles: 1.., .. }) => "server restarted twice",
            Trouble::Restart(_, Kill { burns: Some(_), .. }) => "server restarted from a commit",
            Trouble::Restart(..) => "server restarted",
        }
    }

    /// Whether calls may fail because of it.
    pub fn fails_calls(&self) -> bool {
        match self {
            Trouble::KillClient(_) => false,
            // Messages may come too late to be answered in time.
            Trouble::Slow(_, times) => *times >= SLOW,
            _ => true,
        }
    }

    /// The servers that it strikes.
    fn servers(&self) -> Vec<Rank> {
        match *self {
            Trouble::Cut(one, other) => vec![one, other],
            Trouble::Alone(rank)
            | Trouble::Slow(rank, _)
            | Trouble::KillServer(rank)
            | Trouble::KillNode(rank)
            | Trouble::Restart(rank, _) => vec![rank],
            Trouble::KillClient(_) => Vec::new(),
        }
    }

    /// Whether a server comes back from its journal.
    pub fn restarts(&self) -> bool {
        matches!(self, Trouble::Restart(..))
    }

    /// Whether a server does not come back.
    pub fn kills_server(&self) -> bool {
        matches!(self, Trouble::KillServer(_) | Trouble::KillNode(_))
    }
}

/// When something goes wrong, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When it begins.
    pub at: Duration,
    /// How long it lasts, if it ends.
    pub lasts: Duration,
    /// What.
    pub what: Trouble,
}

/// What programs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// Everything.
    All,
    /// They append to a few files and do little else.
    Logs,
    /// They make and rename directories and files and do little else.
    Moves,
    /// They write and cut a few files and do little else.
    Cuts,
}

/// If programs laminate files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Laminations {
    /// They do not.
    None,
    /// They do.
    Any,
    /// They do, and other nodes see files only then, in place of what [`Plan::raw`] says.
    Ral,
}

/// A client program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its number.
    pub number: usize,
    /// Its node.
    pub rank: Rank,
    /// What it draws from.
    pub seed: u64,
    /// How many operations it does.
    pub operations: usize,
}

/// What a run is.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// How many servers.
    pub servers: u16,
    /// The programs.
    pub clients: Vec<Client>,
    /// Units of storage a node.
    pub units: usize,
    /// Whether memory is lent warm.
    pub warm: bool,
    /// Longest pause of a program between two operations.
    pub pause: Duration,
    /// What programs do.
    pub habit: Habit,
    /// Whether files are raw: what a write wrote is seen everywhere when it returned.
    pub raw: bool,
    /// True if programs lock files.
    pub locks: bool,
    /// If programs laminate files.
    pub laminations: Laminations,
    /// After so many bytes a server's journal is begun anew.
    pub journal_bytes: usize,
    /// What happens to messages.
    pub weather: NetworkFaults,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// What of a plan is left out.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Without {
    /// Clients.
    pub clients: Vec<usize>,
    /// Faults.
    pub faults: Vec<usize>,
    /// Operations of each client beyond so many.
    pub operations: Option<usize>,
}

impl Plan {
    /// What a seed draws.
    pub fn of(seed: u64) -> Plan {
        let dice = SeededRng::new(seed);
        let servers = u16::try_from(2 + dice.below(SERVERS - 1)).expect("few");
        let rank =
            |dice: &SeededRng| Rank(u16::try_from(dice.below(u64::from(servers))).expect("few"));
        let pause = Duration::from_millis([1, 20, 400][dice.pick(3)]);
        let count = 2 + dice.pick(6);
        let operations = 10 + dice.pick(40);
        let clients = (0..count)
            .map(|number| Client {
                number,
                rank: rank(&dice),
                seed: dice.next(),
                operations,
            })
            .collect();
        let units = [24, 100, 1000][dice.pick(3)];
        let warm = dice.chance(500);
        let weather = weather(&dice);
        let span = pause * u32::try_from(operations).expect("few") / 2;
        let faults: Vec<Fault> = (0..dice.pick(4))
            .map(|_| {
                let at = dice.duration((Duration::ZERO, span));
                let longest = [300, 3_000, 12_000][dice.pick(3)];
                let lasts =
                    dice.duration((Duration::from_millis(1), Duration::from_millis(longest)));
                let what = match dice.below(12) {
                    0..4 => Trouble::Cut(rank(&dice), rank(&dice)),
                    4..6 => Trouble::Alone(rank(&dice)),
                    6..8 => Trouble::Slow(rank(&dice), 1 << dice.below(10)),
                    8..10 => Trouble::KillClient(dice.pick(count)),
                    10 => Trouble::KillServer(rank(&dice)),
                    _ => Trouble::KillNode(rank(&dice)),
                };
                Fault { at, lasts, what }
            })
            .collect();
        // Drawn last, so that plans of before they were drawn are what they were, but for it.
        let habit = match dice.chance(200) {
            true => Habit::Logs,
            false => Habit::All,
        };
        let restarts = if dice.chance(400) {
            1 + dice.pick(3)
        } else {
            0
        };
        let mut restarts: Vec<Fault> = (0..restarts)
            .map(|_| {
                let at = dice.duration((Duration::ZERO, span));
                let longest = [30, 1_000, 6_000][dice.pick(3)];
                let lasts =
                    dice.duration((Duration::from_millis(1), Duration::from_millis(longest)));
                let what = Trouble::Restart(rank(&dice), Kill::default());
                Fault { at, lasts, what }
            })
            .collect();
        let journal_bytes = [1 << 10, 8 << 10, 8 << 20][dice.pick(3)];
        for restart in &mut restarts {
            if let Trouble::Restart(_, kill) = &mut restart.what {
                kill.burns = dice
                    .chance(500)
                    .then(|| 1 + u32::try_from(dice.below(40)).expect("few"));
                kill.stumbles = u32::from(dice.chance(150));
            }
        }
        let faults = faults.into_iter().chain(restarts).collect();
        let raw = dice.chance(500);
        let locks = dice.chance(400);
        let laminations = match dice.chance(300) {
            true if dice.chance(300) => Laminations::Ral,
            true => Laminations::Any,
            false => Laminations::None,
        };
        Plan {
            seed,
            servers,
            clients,
            units,
            warm,
            pause,
            habit,
            raw,
            locks,
            laminations,
            journal_bytes,
            weather,
            faults,
        }
    }

    /// The plan without some of it.
    #[must_use]
    pub fn without(mut self, without: &Without) -> Plan {
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

    /// The plan without faults by which calls to servers are lost.
    #[must_use]
    pub fn mild(mut self) -> Plan {
        self.faults.retain(|fault| !fault.what.fails_calls());
        self
    }

    /// The plan with programs that lock nothing.
    #[must_use]
    pub fn without_locks(mut self) -> Plan {
        self.locks = false;
        self
    }

    /// The plan with programs that laminate nothing.
    #[must_use]
    pub fn without_laminations(mut self) -> Plan {
        self.laminations = Laminations::None;
        self
    }

    /// When other nodes see what is written.
    pub fn visibility(&self) -> Visibility {
        match (self.laminations, self.raw) {
            (Laminations::Ral, _) => Visibility::ReadAfterLaminate,
            (_, true) => Visibility::ReadAfterWrite,
            (_, false) => Visibility::ReadAfterSync,
        }
    }

    /// The plan with one server at most that comes back, if no calls are lost but by that.
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

    /// The plan with programs that rename and do little else, and of all faults only servers that
    /// come back, several about the same time.
    #[must_use]
    pub fn moving(mut self) -> Plan {
        let dice = SeededRng::new(!self.seed);
        let times = Duration::from_millis([1, 20][dice.pick(2)]);
        let operations = self.clients.first().map_or(0, |client| client.operations);
        let span = times * u32::try_from(operations).expect("few") / 2;
        (self.habit, self.pause) = (Habit::Moves, times);
        let at = dice.duration((Duration::ZERO, span));
        let restart = |number: usize| {
            let longest = [5, 100, 3_000][dice.pick(3)];
            let lasts = dice.duration((Duration::from_millis(1), Duration::from_millis(longest)));
            let rank = Rank(u16::try_from(dice.below(u64::from(self.servers))).expect("few"));
            let burns = 1 + u32::try_from(dice.below(30)).expect("few");
            let kill = Kill {
                burns: dice.chance(800).then_some(burns),
                stumbles: u32::from(dice.chance(100)),
            };
            Fault {
                at: at + times * u32::try_from(dice.pick(1 + number * 3)).expect("few"),
                lasts,
                what: Trouble::Restart(rank, kill),
            }
        };
        self.faults = (0..2 + dice.pick(3)).map(restart).collect();
        self
    }

    /// As [`Plan::moving`], but the programs write and cut a few files.
    #[must_use]
    pub fn cutting(self) -> Plan {
        let habit = Habit::Cuts;
        Plan {
            habit,
            ..self.moving()
        }
    }

    /// The plan with servers that are killed for good, if at all.
    #[must_use]
    pub fn without_restarts(mut self) -> Plan {
        self.faults.retain(|fault| !fault.what.restarts());
        self
    }

    /// The plan with servers that are killed between two tasks, and come back at once.
    #[must_use]
    pub fn with_plain_kills(mut self) -> Plan {
        for fault in &mut self.faults {
            if let Trouble::Restart(_, kill) = &mut fault.what {
                *kill = Kill::default();
            }
        }
        self
    }

    /// Whether calls may fail for want of a server.
    pub fn fails_calls(&self) -> bool {
        self.faults.iter().any(|fault| fault.what.fails_calls())
    }

    /// Servers whose calls may fail at some time.
    pub fn troubled(&self) -> BTreeSet<Rank> {
        let faults = self.faults.iter().filter(|fault| fault.what.fails_calls());
        faults.flat_map(|fault| fault.what.servers()).collect()
    }

    /// Whether a server is lost for good.
    pub fn kills_server(&self) -> bool {
        self.faults.iter().any(|fault| fault.what.kills_server())
    }
}

fn weather(dice: &SeededRng) -> NetworkFaults {
    let (us, ms) = (Duration::from_micros, Duration::from_millis);
    match dice.below(4) {
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
