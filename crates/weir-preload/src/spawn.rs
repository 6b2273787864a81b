//! `posix_spawn(3)`: libc starts a child that opens files, changes directories and runs the program from
//! inside. If any of that concerns weir, this file forks the child, which does the same by interposed
//! functions.
//!
//! Only libc knows the contents of its list of actions, so each added action is noted here too. The note
//! is dropped by posix_spawn_file_actions_destroy, or with the next list at its address.

use core::ffi::{c_char, c_int, c_short, c_void};
use std::ffi::CString;

use rustix::io::Errno;
use weir_client::kernel::block_signals;
use weir_client::process::process;
use weir_client::siglock::SigLock;

use crate::environment::{keeps_us_out, with_environment, with_variables, Strings};
use crate::launch::{around_fork, fork};
use crate::{bytes_of, calls, ending, exec, is_our_c_path, made, names, needed, raw};

mod next {
    use super::{c_char, c_int, c_void, Strings};
    use libc::{mode_t, pid_t};

    crate::next::next_fn! {
        posix_spawn: fn(*mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
        posix_spawnp: fn(*mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
        posix_spawn_file_actions_init: fn(*mut c_void) -> c_int;
        posix_spawn_file_actions_destroy: fn(*mut c_void) -> c_int;
        posix_spawn_file_actions_addopen: fn(*mut c_void, c_int, *const c_char, c_int, mode_t) -> c_int;
        posix_spawn_file_actions_addclose: fn(*mut c_void, c_int) -> c_int;
        posix_spawn_file_actions_adddup2: fn(*mut c_void, c_int, c_int) -> c_int;
        posix_spawn_file_actions_addchdir_np: fn(*mut c_void, *const c_char) -> c_int;
        posix_spawn_file_actions_addfchdir_np: fn(*mut c_void, c_int) -> c_int;
        posix_spawn_file_actions_addclosefrom_np: fn(*mut c_void, c_int) -> c_int;
        posix_spawn_file_actions_addtcsetpgrp_np: fn(*mut c_void, c_int) -> c_int;
    }
}

pub use next::resolve_all as resolve;

/// An action of a child before its program runs.
#[derive(Clone, Debug)]
enum Action {
    Open {
        fd: c_int,
        path: CString,
        flags: c_int,
        mode: libc::mode_t,
    },
    Close(c_int),
    CloseFrom(c_int),
    Duplicate {
        from: c_int,
        to: c_int,
    },
    Enter(CString),
    EnterOpen(c_int),
    TakeTerminal(c_int),
}

/// A list of actions of the program's, by its address.
struct ActionList {
    list: usize,
    actions: Vec<Action>,
}

static NOTED: SigLock<Vec<ActionList>> = SigLock::new(Vec::new());

/// Takes the lock of the notes before a fork, and keeps it.
pub(crate) fn before_fork() {
    // The holder of this lock cannot be the forking thread: its signals are blocked.
    if let Some(noted) = NOTED.lock() {
        noted.keep();
    }
}

/// Releases the lock, in both processes.
pub(crate) fn after_fork() {
    // SAFETY: `before_fork` kept it, by this thread.
    unsafe { NOTED.give_back() };
}

fn note_action(list: *mut c_void, action: Action) {
    if !process().is_active() {
        return;
    }
    let _signals = block_signals();
    let Some(mut noted) = NOTED.lock() else {
        return;
    };
    match noted.iter_mut().find(|noted| noted.list == list as usize) {
        Some(noted) => noted.actions.push(action),
        None => noted.push(ActionList {
            list: list as usize,
            actions: vec![action],
        }),
    }
}

fn forget_list(list: *mut c_void) {
    let _signals = block_signals();
    if let Some(mut noted) = NOTED.lock() {
        noted.retain(|noted| noted.list != list as usize);
    }
}

fn actions_of(list: *const c_void) -> Vec<Action> {
    let _signals = block_signals();
    let noted = NOTED.lock();
    let found = noted.and_then(|noted| {
        let noted = noted.iter().find(|noted| noted.list == list as usize)?;
        Some(noted.actions.clone())
    });
    found.unwrap_or_default()
}

/// A copy of a path.
///
/// # Safety
///
/// `path` is a C string.
unsafe fn copied(path: *const c_char) -> CString {
    // SAFETY: a C string, by this function's contract.
    let bytes = unsafe { bytes_of(path) }.unwrap_or_default();
    CString::new(bytes).unwrap_or_default()
}

macro_rules! actions {
    ($($name:ident ($list:ident $(, $p:ident: $t:ty)*) => $then:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($list: *mut c_void $(, $p: $t)*) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: the arguments meet the C function's requirements, by the caller; `f` is
            // libc's function of this name.
            let done = unsafe { next::$name().map_or(libc::ENOSYS, |f| f($list $(, $p)*)) };
            if done != 0 {
                return done;
            }
            crate::attempt(|| $then).map_or_else(|errno| errno.raw_os_error(), |()| 0)
        }
    )*};
}

actions! {
    posix_spawn_file_actions_init(list) => forget_list(list);
    posix_spawn_file_actions_destroy(list) => forget_list(list);
    posix_spawn_file_actions_addopen(list, fd: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t)
        // SAFETY: libc took the path just now, so that it is a C string.
        => note_action(list, Action::Open { fd, path: unsafe { copied(path) }, flags, mode });
    posix_spawn_file_actions_addclose(list, fd: c_int) => note_action(list, Action::Close(fd));
    posix_spawn_file_actions_adddup2(list, from: c_int, to: c_int) => note_action(list, Action::Duplicate { from, to });
    posix_spawn_file_actions_addchdir_np(list, path: *const c_char)
        // SAFETY: libc took the path just now, so that it is a C string.
        => note_action(list, Action::Enter(unsafe { copied(path) }));
    posix_spawn_file_actions_addfchdir_np(list, fd: c_int) => note_action(list, Action::EnterOpen(fd));
    posix_spawn_file_actions_addclosefrom_np(list, from: c_int) => note_action(list, Action::CloseFrom(from));
    posix_spawn_file_actions_addtcsetpgrp_np(list, terminal: c_int) => note_action(list, Action::TakeTerminal(terminal));
}

/// A program to start, as the caller specifies it: arguments of posix_spawn(3), which live while that runs.
#[derive(Clone, Copy)]
struct Program {
    file: *const c_char,
    argv: Strings,
    searches: bool,
}

impl Program {
    /// True if the program starts without the interposer.
    ///
    /// # Safety
    ///
    /// The posix_spawn(3) to which `file` was passed still runs.
    unsafe fn starts_without_us(&self) -> bool {
        // SAFETY: `file` is null or a C string while posix_spawn(3) runs; each candidate is a C
        // string.
        unsafe {
            let name = bytes_of(self.file).unwrap_or_default();
            match self.searches && !name.contains(&b'/') {
                true => exec::candidates(name)
                    .find(|path| names::access(path.as_ptr(), libc::X_OK) == 0)
                    .is_some_and(|path| exec::starts_without_us(path.as_ptr())),
                false => exec::starts_without_us(self.file),
            }
        }
    }

    /// True if the program lies in weir, or may be found there.
    ///
    /// # Safety
    ///
    /// The posix_spawn(3) to which `file` was passed still runs.
    unsafe fn is_ours(&self) -> bool {
        // SAFETY: `file` is null or a C string while posix_spawn(3) runs; each candidate is a C
        // string.
        unsafe {
            let name = bytes_of(self.file).unwrap_or_default();
            match self.searches && !name.contains(&b'/') {
                true => {
                    exec::candidates(name).any(|path| is_our_c_path(libc::AT_FDCWD, path.as_ptr()))
                }
                false => is_our_c_path(libc::AT_FDCWD, self.file),
            }
        }
    }
}

/// Returns true if an action concerns weir, judged by the caller's directory and descriptors. After a
/// change of directory any path may.
fn concerns_us(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        // SAFETY: a C string.
        Action::Open { path, .. } => unsafe { is_our_c_path(libc::AT_FDCWD, path.as_ptr()) },
        Action::Enter(_) | Action::EnterOpen(_) => true,
        _ => false,
    })
}

macro_rules! spawns {
    ($($name:ident $searches:literal;)*) => {$(
        /// `posix_spawn(3)`.
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name(
            pid: *mut libc::pid_t,
            file: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            let _ends = crate::EndsByPanic;
            // SAFETY: the arguments are those of posix_spawn(3), by the caller: strings, arrays
            // that end with null, and `pid`, null or room for one.
            unsafe {
                let inherits = match crate::attempt(|| process().forks.may_have_inherited_fds()) {
                    Ok(inherits) => inherits,
                    Err(errno) => return errno.raw_os_error(),
                };
                let by_libc = || {
                    let failed = with_variables(envp, inherits, |envp| around_fork(|| {
                        next::$name().map_or(libc::ENOSYS, |f| f(pid, file, actions, attributes, argv, envp))
                    }));
                    failed.flatten().unwrap_or_else(Errno::raw_os_error)
                };
                if !crate::is_active() {
                    return by_libc();
                }
                let program = Program { file, argv, searches: $searches };
                let noted = match crate::attempt(|| actions_of(actions)) {
                    Ok(noted) => noted,
                    Err(errno) => return errno.raw_os_error(),
                };
                let is_kernels = !program.is_ours()
                    && !needed::looks_in_weir(envp)
                    && !(inherits && (keeps_us_out(envp) || program.starts_without_us()));
                if is_kernels && !concerns_us(&noted) {
                    let failed = by_libc();
                    if failed != libc::ENOENT || !exec::has_our_interpreter(file) {
                        return failed;
                    }
                }
                let saved = raw::errno();
                let done = SpawnAttributes::read_from(attributes).and_then(|attributes| spawn(&program, &noted, &attributes, envp));
                raw::restore_errno(saved);
                match done {
                    Ok(child) => {
                        if !pid.is_null() {
                            pid.write(child);
                        }
                        0
                    }
                    Err(errno) => errno.raw_os_error(),
                }
            }
        }
    )*};
}
spawns! { posix_spawn false; posix_spawnp true; }

const RESET_IDS: c_int = 0x01;
const SET_GROUP: c_int = 0x02;
const SET_DEFAULTS: c_int = 0x04;
const SET_MASK: c_int = 0x08;
const SET_PARAMETERS: c_int = 0x10;
const SET_SCHEDULER: c_int = 0x20;
const USE_VFORK: c_int = 0x40;
const SET_SESSION: c_int = 0x80;
const KNOWN: c_int = RESET_IDS
    | SET_GROUP
    | SET_DEFAULTS
    | SET_MASK
    | SET_PARAMETERS
    | SET_SCHEDULER
    | USE_VFORK
    | SET_SESSION;

/// The contents of posix_spawnattr_t.
struct SpawnAttributes {
    flags: c_int,
    group: libc::pid_t,
    defaults: libc::sigset_t,
    mask: libc::sigset_t,
    policy: c_int,
    parameters: libc::sched_param,
}

impl SpawnAttributes {
    /// # Safety
    ///
    /// `attributes` is null or was filled by posix_spawnattr_init(3).
    unsafe fn read_from(attributes: *const c_void) -> Result<SpawnAttributes, Errno> {
        // SAFETY: null, or attributes that libc filled, by the caller; all zero is a value of each
        // field.
        unsafe {
            let mut all = core::mem::zeroed::<SpawnAttributes>();
            let from = attributes.cast::<libc::posix_spawnattr_t>();
            if !from.is_null() {
                let mut flags: c_short = 0;
                libc::posix_spawnattr_getflags(from, &raw mut flags);
                all.flags = c_int::from(flags);
                libc::posix_spawnattr_getpgroup(from, &raw mut all.group);
                libc::posix_spawnattr_getsigdefault(from, &raw mut all.defaults);
                libc::posix_spawnattr_getsigmask(from, &raw mut all.mask);
                libc::posix_spawnattr_getschedpolicy(from, &raw mut all.policy);
                libc::posix_spawnattr_getschedparam(from, &raw mut all.parameters);
            }
            if all.flags & !KNOWN != 0 {
                process().refusals.note_refusal("posix_spawn");
                return Err(Errno::OPNOTSUPP);
            }
            Ok(all)
        }
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Applies the attributes in the child, except the signal mask.
    fn apply(&self) -> Result<(), Errno> {
        // SAFETY: numbers, and structures of this one.
        unsafe {
            if self.has(SET_DEFAULTS) {
                for signal in 1..=libc::SIGRTMAX() {
                    if libc::sigismember(&raw const self.defaults, signal) == 1 {
                        libc::signal(signal, libc::SIG_DFL);
                    }
                }
            }
            if self.has(SET_SCHEDULER) {
                checked(libc::sched_setscheduler(
                    0,
                    self.policy,
                    &raw const self.parameters,
                ))?;
            } else if self.has(SET_PARAMETERS) {
                checked(libc::sched_setparam(0, &raw const self.parameters))?;
            }
            if self.has(SET_SESSION) {
                checked(libc::setsid())?;
            }
            if self.has(SET_GROUP) {
                checked(libc::setpgid(0, self.group))?;
            }
            if self.has(RESET_IDS) {
                checked(libc::seteuid(libc::getuid()))?;
                checked(libc::setegid(libc::getgid()))?;
            }
        }
        Ok(())
    }
}

fn checked(result: c_int) -> Result<c_int, Errno> {
    match result {
        -1 => Err(Errno::from_raw_os_error(raw::errno())),
        result => Ok(result),
    }
}

/// Blocks all signals until it is dropped.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn now() -> Blocked {
        // SAFETY: all zero is a value of both sets.
        unsafe {
            let mut all = core::mem::zeroed::<libc::sigset_t>();
            let mut before = core::mem::zeroed::<libc::sigset_t>();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Blocked { before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let before = &raw const self.before;
        // SAFETY: a set of signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, core::ptr::null_mut()) };
    }
}

/// Starts the program in a child. An error of the child before its program runs is returned to the
/// caller.
///
/// # Safety
///
/// The caller meets the requirements of posix_spawn(3).
unsafe fn spawn(
    program: &Program,
    actions: &[Action],
    attributes: &SpawnAttributes,
    envp: Strings,
) -> Result<libc::pid_t, Errno> {
    // SAFETY: `program` and `envp` are arguments of posix_spawn(3), by the caller; the child only
    // runs the program or ends. The descriptors are made here.
    unsafe {
        let [read, write] = pipe_above(actions)?;
        let blocked = Blocked::now();
        let child = checked(fork());
        if let Ok(0) = child {
            calls::close(read);
            let errno = run_in_child(program, actions, attributes, envp, &blocked, write);
            let said = errno.raw_os_error().to_ne_bytes();
            calls::write(write, said.as_ptr().cast(), said.len());
            ending::_exit(127);
        }
        calls::close(write);
        let child = child.inspect_err(|_| {
            calls::close(read);
        })?;
        let mut said = [0u8; size_of::<c_int>()];
        let got = loop {
            let got = calls::read(read, said.as_mut_ptr().cast(), said.len());
            if got >= 0 || raw::errno() != libc::EINTR {
                break got;
            }
        };
        calls::close(read);
        if got <= 0 {
            return Ok(child);
        }
        while libc::waitpid(child, core::ptr::null_mut(), 0) < 0 && raw::errno() == libc::EINTR {}
        drop(blocked);
        Err(Errno::from_raw_os_error(c_int::from_ne_bytes(said)))
    }
}

/// A pipe with descriptor numbers that no action uses.
fn pipe_above(actions: &[Action]) -> Result<[c_int; 2], Errno> {
    let used = actions.iter().map(|action| match action {
        Action::Open { fd, .. }
        | Action::Close(fd)
        | Action::EnterOpen(fd)
        | Action::TakeTerminal(fd) => *fd,
        Action::Duplicate { from, to } => *from.max(to),
        Action::CloseFrom(_) | Action::Enter(_) => 0,
    });
    let above = used.max().unwrap_or(0).max(2) + 1;
    let mut both = [-1; 2];
    // SAFETY: room for two descriptors; the rest are numbers, of descriptors made here.
    unsafe {
        checked(made::pipe2(both.as_mut_ptr(), libc::O_CLOEXEC))?;
        let moved = both.map(|fd| {
            let moved = calls::fcntl(fd, libc::F_DUPFD_CLOEXEC, above as usize);
            calls::close(fd);
            moved
        });
        if let Some(lacking) = moved.iter().find(|fd| **fd < 0) {
            let errno = checked(*lacking);
            for fd in moved.into_iter().filter(|fd| *fd >= 0) {
                calls::close(fd);
            }
            errno?;
        }
        Ok(moved)
    }
}

/// Runs in the child. Returns only an error.
///
/// # Safety
///
/// The caller meets the requirements of posix_spawn(3), and is its child.
unsafe fn run_in_child(
    program: &Program,
    actions: &[Action],
    attributes: &SpawnAttributes,
    envp: Strings,
    blocked: &Blocked,
    pipe: c_int,
) -> Errno {
    // SAFETY: `program` and `envp` are arguments of posix_spawn(3), by the caller; `mask` points
    // into a structure that lives.
    unsafe {
        let ready = attributes.apply().and_then(|()| {
            actions
                .iter()
                .try_for_each(|action| apply_action(action, pipe))
        });
        if let Err(errno) = ready {
            return errno;
        }
        let mask = match attributes.has(SET_MASK) {
            true => &raw const attributes.mask,
            false => &raw const blocked.before,
        };
        let ran = with_environment(envp, |envp| {
            libc::pthread_sigmask(libc::SIG_SETMASK, mask, core::ptr::null_mut());
            match program.searches {
                true => exec::search(program.file, program.argv, envp, false),
                false => exec::run(program.file, program.argv, envp, 0),
            }
        });
        ran.map_or_else(|errno| errno, |_| Errno::from_raw_os_error(raw::errno()))
    }
}

/// # Safety
///
/// This process is a child of posix_spawn(3): the action may close any of its descriptors.
unsafe fn apply_action(action: &Action, pipe: c_int) -> Result<(), Errno> {
    // SAFETY: the paths are C strings of the action, the rest are numbers.
    let done = unsafe {
        match action {
            Action::Open {
                fd,
                path,
                flags,
                mode,
            } => {
                // POSIX: as if it had been closed before.
                calls::close(*fd);
                let opened = checked(names::open(path.as_ptr(), *flags, *mode))?;
                if opened != *fd {
                    checked(calls::dup2(opened, *fd))?;
                    calls::close(opened);
                }
                0
            }
            Action::Close(fd) => {
                calls::close(*fd);
                0
            }
            Action::CloseFrom(from) => {
                let (first, pipe) = ((*from).cast_unsigned(), pipe.cast_unsigned());
                if first < pipe {
                    calls::close_range(first, pipe - 1, 0);
                }
                calls::close_range(first.max(pipe + 1), core::ffi::c_uint::MAX, 0)
            }
            Action::Duplicate { from, to } if from == to => {
                let flags = checked(calls::fcntl(*from, libc::F_GETFD, 0))?;
                calls::fcntl(*from, libc::F_SETFD, (flags & !libc::FD_CLOEXEC) as usize)
            }
            Action::Duplicate { from, to } => calls::dup2(*from, *to),
            Action::Enter(path) => names::chdir(path.as_ptr()),
            Action::EnterOpen(fd) => calls::fchdir(*fd),
            Action::TakeTerminal(fd) => libc::tcsetpgrp(*fd, libc::getpgrp()),
        }
    };
    checked(done).map(|_| ())
}
