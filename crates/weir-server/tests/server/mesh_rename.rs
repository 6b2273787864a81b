//! A file's rename, between its two steps, after its leader told the caller that the result is unknown:
//! the old name is free for others, and is removed later only if that takes nothing from them.

use std::cell::Cell;
use std::rc::Rc;

use crate::mesh::{create, Mesh};
use futures_util::task::LocalSpawnExt;
use weir_core::journal::Item;
use weir_core::names::FileType;
use weir_core::placement::home_of_entry;
use weir_core::proto::peer::{self, Destination, Left};
use weir_core::proto::{self, Child, FsError};
use weir_core::types::{Ino, Rank};
use weir_server::cluster::enclose;
use weir_server::cluster::ROOT;

const SERVERS: u16 = 3;
const OLD: Rank = Rank(0);
const NEW: Rank = Rank(1);
const LEADER: Rank = Rank(2);
const TOKEN: u64 = 1 << 40;

/// A rename with its first step done.
struct Late {
    mesh: Mesh,
    file: Child,
    old: String,
    new: String,
}

impl Late {
    fn new() -> Late {
        let mut mesh = Mesh::new(SERVERS, 5);
        let name_at = |rank| {
            let mut names = (0..).map(|n| format!("name-{n}"));
            names.find(|name| home_of_entry(ROOT, name.as_bytes(), SERVERS) == rank)
        };
        let (old, new) = (name_at(OLD).unwrap(), name_at(NEW).unwrap());
        let file = Child {
            ino: mesh.file(&old),
            kind: FileType::File,
        };
        let mut late = Late {
            mesh,
            file,
            old,
            new,
        };
        let (ino, to) = (file.ino, Some(late.destination()));
        let lock = |name: &str, to| peer::LockName {
            dir: ROOT,
            name: name.into(),
            token: TOKEN,
            to,
            swaps: false,
        };
        let (lock_old, lock_new) = (lock(&late.old, to), lock(&late.new, None));
        let mesh = &mut late.mesh;
        assert_eq!(mesh.ask_peer(LEADER, OLD, lock_old), Ok(Some(file)));
        assert_eq!(mesh.ask_peer(LEADER, NEW, lock_new), Ok(None));
        let link = peer::Relink { ino, add: true };
        assert_eq!(mesh.ask_peer(LEADER, OLD, link), Ok(FileType::File));
        let step = late.step(&late.new, None, Some(file));
        assert_eq!(late.mesh.ask_peer(LEADER, NEW, step), Ok(()));
        late.unlock(Left::Later);
        late
    }

    fn unlock(&mut self, left: Left) {
        for (home, name) in [(OLD, &self.old), (NEW, &self.new)] {
            let unlock = peer::UnlockName {
                dir: ROOT,
                name: name.as_bytes().into(),
                token: TOKEN,
                left,
            };
            self.mesh.ask_peer(LEADER, home, unlock).unwrap();
        }
    }

    fn destination(&self) -> Destination {
        Destination {
            home: NEW,
            dir: ROOT,
            name: self.new.as_bytes().into(),
        }
    }

    fn step(&self, name: &str, was: Option<Child>, child: Option<Child>) -> peer::Assign {
        peer::Assign {
            dir: ROOT,
            name: name.into(),
            token: TOKEN,
            was,
            from: None,
            to: was.map(|_| self.destination()),
            child,
        }
    }

    /// Repeats the first step.
    fn give_new(&mut self) -> Result<(), FsError> {
        let step = self.step(&self.new, None, Some(self.file));
        self.mesh.ask_peer(LEADER, NEW, step)
    }

    /// The number of steps that the new name's home has recorded.
    fn steps(&self) -> usize {
        let mut steps = 0;
        let home = self.mesh.server(usize::from(NEW.0));
        home.for_each_item(&mut |item| {
            steps += usize::from(matches!(item, Item::NameChanging(..)));
        });
        steps
    }

    /// The second step.
    fn take_old(&mut self) -> Result<(), FsError> {
        let step = self.step(&self.old, Some(self.file), None);
        self.mesh.ask_peer(LEADER, OLD, step)
    }

    fn names(&mut self) -> [Option<Ino>; 2] {
        [self.old.clone(), self.new.clone()].map(|name| {
            let find = proto::Find {
                dir: ROOT,
                name: name.into(),
            };
            self.mesh.call(1, find).unwrap().map(|child| child.ino)
        })
    }

    fn rename(&mut self, from: &str, to: &str) {
        let rename = proto::Rename {
            parent: ROOT,
            name: from.into(),
            new_parent: ROOT,
            new_name: to.into(),
            flags: 0,
        };
        self.mesh.call(1, rename).unwrap();
    }
}

/// The leader repeats a call if the home restarts during it. Others may have had the name since: given
/// again it would be a name for which no link is counted.
#[test]
fn a_step_that_was_done_is_not_done_again() {
    let mut late = Late::new();
    let (file, new) = (Some(late.file.ino), late.new.clone());
    late.rename(&new, "elsewhere");
    assert_eq!(late.names(), [file, None]);
    assert_eq!(late.give_new(), Ok(()));
    assert_eq!(late.names(), [file, None]);
    let find = proto::Find {
        dir: ROOT,
        name: "elsewhere".into(),
    };
    let found = late.mesh.call(0, find).unwrap().unwrap();
    assert_eq!(Some(found.ino), file);

    let mut late = Late::new();
    let (old, new) = (late.old.clone(), late.new.clone());
    assert_eq!(late.take_old(), Ok(()));
    late.rename(&new, "elsewhere");
    late.rename("elsewhere", &old);
    assert_eq!(late.take_old(), Ok(()));
    assert_eq!(late.names(), [file, None]);
}

#[test]
fn steps_are_kept_until_the_rename_has_ended() {
    let mut late = Late::new();
    assert_eq!(late.steps(), 1);
    late.unlock(Left::Nothing);
    assert_eq!(late.steps(), 0);

    // The unlock may be lost; the leader later reports how far its renames have ended.
    let mut late = Late::new();
    for (renames_since, steps) in [(TOKEN, 1), (TOKEN + 1, 0)] {
        let begin = peer::Begin {
            held: Vec::new(),
            renames_since,
        };
        late.mesh.ask_peer(LEADER, NEW, begin).unwrap();
        assert_eq!(late.steps(), steps);
    }
}

#[test]
fn the_old_name_goes_if_nobody_has_had_it() {
    let mut late = Late::new();
    let file = Some(late.file.ino);
    assert_eq!(late.names(), [file; 2]);
    assert_eq!(late.take_old(), Ok(()));
    assert_eq!(late.names(), [None, file]);
}

#[test]
fn the_old_name_goes_once_the_home_of_the_new_one_is_reached_again() {
    let mut late = Late::new();
    let file = Some(late.file.ino);
    let step = late.step(&late.old, Some(late.file), None);
    let request = enclose(0, 30_000, &peer::request(step));
    let (old_home, told) = (
        late.mesh.server(usize::from(OLD.0)),
        Rc::new(Cell::new(None)),
    );
    late.mesh.deafen(&[NEW]);
    let tell = Rc::clone(&told);
    let task = async move {
        let answer = old_home.handle(LEADER, &request).await;
        tell.set(Some(peer::reply::<peer::Assign>(&answer.body)));
    };
    late.mesh.pool.spawner().spawn_local(task).unwrap();
    for _ in 0..10 {
        late.mesh.go_on();
    }
    assert_eq!(told.get(), None, "nobody knows what the new name is");
    late.mesh.deafen(&[]);
    late.mesh.go_on();
    assert_eq!(told.get(), Some(Ok(())));
    assert_eq!(late.names(), [None, file]);
}

#[test]
fn the_old_name_goes_if_the_rename_was_tried_again() {
    let mut late = Late::new();
    let (file, old, new) = (Some(late.file.ino), late.old.clone(), late.new.clone());
    late.rename(&old, &new);
    assert_eq!(late.take_old(), Ok(()));
    assert_eq!(late.names(), [None, file]);
}

#[test]
fn the_old_name_stays_if_the_new_one_was_taken_away() {
    let mut late = Late::new();
    let (file, new) = (Some(late.file.ino), late.new.clone());
    let (parent, name) = (ROOT, new.into());
    late.mesh.call(1, proto::Unlink { parent, name }).unwrap();
    assert_eq!(late.take_old(), Err(FsError::Unreachable));
    assert_eq!(late.names(), [file, None]);
}

#[test]
fn the_old_name_stays_if_the_file_was_given_it_again() {
    let mut late = Late::new();
    let (file, old, new) = (Some(late.file.ino), late.old.clone(), late.new.clone());
    // Two names of one file: both stay.
    late.rename(&new, &old);
    assert_eq!(late.take_old(), Err(FsError::Unreachable));
    assert_eq!(late.names(), [file; 2]);
}

#[test]
fn the_old_name_stays_if_another_file_has_it_or_had_it() {
    let mut late = Late::new();
    let (file, old, new) = (Some(late.file.ino), late.old.clone(), late.new.clone());
    late.rename(&old, "kept");
    let other = late.mesh.call(1, create(ROOT, &old)).unwrap().ino;
    let other = late.mesh.call(1, proto::GetAttr { ino: other });
    let other = Some(other.unwrap().home);
    assert_eq!(late.take_old(), Err(FsError::Unreachable));
    assert_eq!(late.names(), [other, file]);

    let mut late = Late::new();
    let file = Some(late.file.ino);
    late.rename(&old, "kept");
    late.rename("kept", &old);
    assert_eq!(late.take_old(), Err(FsError::Unreachable));
    assert_eq!(late.names(), [file; 2]);
    late.rename(&new, "kept");
    assert_eq!(late.names(), [file, None]);
}
