//! The functions that our wrappers shadow, and the macro that declares the wrappers.
//!
//! A wrapper asks the client first. A call that is not about weir goes on to the next library's function
//! of the same name, so that other interposers behind us (a profiler) still see it. The addresses are
//! looked up once, when this library is initialised: `dlsym` inside a wrapper could deadlock under
//! allocators that open files. Other libraries' constructors may run before ours; until then wrappers
//! make the system call themselves.
//!
//! A program may leave the next library's function by unwinding: for example, a thread that is cancelled
//! in read(2). So neither that call nor the wrapper stops the unwinding (`C-unwind`), and no wrapper
//! holds a resource on its stack then. A panic of ours does not get that far: it is caught around the
//! client's code (`weir_client::bugs`).

use core::ffi::{c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next library's function of a name; null until it was looked up.
#[derive(Debug)]
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// Not yet looked up.
    pub const fn new(name: &'static CStr) -> Next {
        Next {
            name,
            address: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Looks it up.
    pub fn resolve(&self) {
        // SAFETY: the name is a C string; RTLD_NEXT searches behind this library.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Release);
    }

    /// Its name.
    pub const fn name(&self) -> &'static CStr {
        self.name
    }

    /// Its address, or null.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        self.address.load(Ordering::Relaxed)
    }

    /// Its address, looked up now if need be: for functions that no system call can replace.
    pub fn get_or_resolve(&self) -> *mut c_void {
        if self.get().is_null() {
            self.resolve();
        }
        self.get()
    }
}

/// The result of an interposed function that makes a descriptor.
pub type Descriptor = c_int;

/// Declares wrappers of functions that are system calls.
///
/// `[names] (arguments) -> result: system call, [its arguments] => |process| ours;`
/// where `ours` is an `Option<Result<_, Errno>>`: `None` passes the call on. If the result is a
/// [`Descriptor`], the kernel has just made it.
macro_rules! interpose {
    ($(
        [$($name:ident)+] $parameters:tt -> $r:ident: $number:expr, $arguments:tt
            => |$process:ident| $ours:expr;
    )*) => {
        $($(
            $crate::next::interpose!(@one $name $parameters -> $r: $number, $arguments => |$process| $ours);
        )+)*

        /// Looks up the next function behind each wrapper of this file.
        pub fn resolve() {
            $($( next::$name.resolve(); )+)*
        }

        #[allow(non_upper_case_globals)] // named as the functions they stand for
        mod next {
            $($( $crate::next::interpose!(@static $name); )+)*
        }
    };
    (@static $name:ident) => {
        pub static $name: $crate::next::Next = $crate::next::Next::new(
            match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            },
        );
    };
    (@broken fd $fd:ident) => { weir_client::process::process().descriptors.break_file($fd) };
    (@broken from $fd:ident) => { weir_client::process::process().descriptors.break_file($fd) };
    (@broken to $fd:ident) => { weir_client::process::process().descriptors.break_file($fd) };
    (@broken $other:ident $same:ident) => {};
    (@given Descriptor $result:expr) => { $crate::note_made($result) };
    (@given $r:ident $result:expr) => { $result };
    (@one $name:ident ($($p:ident: $t:ty),*) -> $r:ident: $number:expr, [$($a:expr),*] => |$process:ident| $ours:expr) => {
        #[doc = concat!("`", stringify!($name), "`: ours, or the next library's.")]
        ///
        /// # Safety
        ///
        /// The caller meets the requirements of the C function of this name.
        #[no_mangle]
        pub unsafe extern "C-unwind" fn $name($($p: $t),*) -> $r {
            if let Some($process) = $crate::process() {
                let ours = weir_client::bugs::contain(|| $ours, || {
                    $( $crate::next::interpose!(@broken $p $p); )*
                    Some(Err(rustix::io::Errno::IO))
                });
                if let Some(result) = ours {
                    return $crate::finish(result);
                }
            }
            let next = next::$name.get();
            if next.is_null() {
                // SAFETY: the arguments meet the C function's requirements, by the caller, which
                // are those of the system call.
                let result = unsafe { $crate::raw::outcome($crate::raw::syscall($number, $crate::next::six([$($a as usize),*]))) } as $r;
                return $crate::next::interpose!(@given $r result);
            }
            // SAFETY: the symbol of this name has this signature, and the arguments meet its requirements, by the
            // caller.
            let result = unsafe {
                core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C-unwind" fn($($t),*) -> $r>(next)($($p),*)
            };
            $crate::next::interpose!(@given $r result)
        }
    };
}
pub(crate) use interpose;

/// The arguments of a system call, padded to six.
#[inline]
pub fn six<const N: usize>(arguments: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    all
}

/// Declares a [`Next`] and a typed accessor for a function that no system call can replace.
macro_rules! next_fn {
    ($( $name:ident: fn($($t:ty),*) -> $r:ty; )*) => {
        $(
            #[doc = concat!("The next `", stringify!($name), "`.")]
            pub fn $name() -> Option<unsafe extern "C-unwind" fn($($t),*) -> $r> {
                static NEXT: $crate::next::Next = $crate::next::Next::new(
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    },
                );
                let next = NEXT.get_or_resolve();
                if next.is_null() {
                    return None;
                }
                // SAFETY: the symbol of this name has this signature.
                Some(unsafe {
                    core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C-unwind" fn($($t),*) -> $r>(next)
                })
            }
        )*

        /// Looks up all of these.
        pub fn resolve_all() {
            $( let _ = $name(); )*
        }
    };
}
pub(crate) use next_fn;
