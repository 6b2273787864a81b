//! Objects and memory in use by a provider: objects that are closed when dropped, and bytes that do
//! not move while the provider may write to them.

use core::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::abi;

/// A type that begins with [`abi::Fid`].
///
/// # Safety
/// Its first field is a `Fid`, and it is `repr(C)`.
pub unsafe trait Object {}
// SAFETY: it is `repr(C)` and begins with a `Fid`.
unsafe impl Object for abi::Fabric {}
// SAFETY: it is `repr(C)` and begins with a `Fid`.
unsafe impl Object for abi::Domain {}
// SAFETY: it is `repr(C)` and begins with a `Fid`.
unsafe impl Object for abi::Av {}
// SAFETY: it is `repr(C)` and begins with a `Fid`.
unsafe impl Object for abi::Cq {}
// SAFETY: it is `repr(C)` and begins with a `Fid`.
unsafe impl Object for abi::Ep {}
// SAFETY: it is `repr(C)` and begins with a `Fid`.
unsafe impl Object for abi::Mr {}

/// An open object of libfabric; closed when dropped.
pub struct OpenObject<T: Object>(NonNull<T>);

impl<T: Object> OpenObject<T> {
    /// Takes over an object that a call opened.
    ///
    /// # Safety
    /// `object` is open, and nothing else closes it.
    pub unsafe fn new(object: NonNull<T>) -> OpenObject<T> {
        OpenObject(object)
    }

    /// The object, for calls.
    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The header of all objects.
    pub fn fid(&self) -> *mut abi::Fid {
        self.0.as_ptr().cast()
    }

    /// `fi_control`.
    ///
    /// # Safety
    /// `argument` has the type that the command requires.
    pub unsafe fn control(&self, command: c_int, argument: *mut c_void) -> c_int {
        // SAFETY: the object is open, and its table has a control, as each has by the ABI of
        // 1.0; the argument is the caller's duty.
        unsafe {
            let ops = &*(*self.fid()).ops;
            ops.control.map_or(-libc::ENOSYS, |control| {
                control(self.fid(), command, argument)
            })
        }
    }

    /// `fi_bind`.
    ///
    /// # Safety
    /// `to` is open, and stays so until this is closed.
    pub unsafe fn bind(&self, to: *mut abi::Fid, flags: u64) -> c_int {
        // SAFETY: both are open.
        unsafe {
            let ops = &*(*self.fid()).ops;
            ops.bind
                .map_or(-libc::ENOSYS, |bind| bind(self.fid(), to, flags))
        }
    }

    /// Closes the object; an error if the provider still uses it.
    pub fn close(self) -> Result<(), c_int> {
        let this = ManuallyDrop::new(self);
        this.close_now()
    }

    fn close_now(&self) -> Result<(), c_int> {
        // SAFETY: it is open, and this is the last use: `close` takes it, and so does `drop`.
        let result = unsafe {
            let ops = &*(*self.fid()).ops;
            ops.close.map_or(-libc::ENOSYS, |close| close(self.fid()))
        };
        if result == 0 {
            Ok(())
        } else {
            Err(result)
        }
    }
}

impl<T: Object> Drop for OpenObject<T> {
    fn drop(&mut self) {
        if let Err(code) = self.close_now() {
            tracing::warn!(code, "libfabric keeps something open");
        }
    }
}

/// Bytes on the heap that do not move, without a Rust reference to them while a provider may read
/// or write them.
pub struct Bytes {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

impl Bytes {
    /// Takes over a vector's bytes.
    pub fn new(bytes: Vec<u8>) -> Bytes {
        let mut bytes = ManuallyDrop::new(bytes);
        Bytes {
            start: NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null"),
            len: bytes.len(),
            capacity: bytes.capacity(),
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A pointer to `len` bytes at `offset`, all within the memory; for calls of the provider.
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{offset} + {len} of {}",
            self.len
        );
        // SAFETY: the offset is within the allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// A range of the bytes, to read or to change.
    ///
    /// # Safety
    /// No operation under way writes to the range; to change it, none reads it either.
    pub unsafe fn slice(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let start = self.at(offset, len);
        // SAFETY: within the allocation, initialised as a vector's bytes are, borrowed through
        // `self`; the caller says that nobody else is there.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Converts the bytes back into a vector.
    ///
    /// # Safety
    /// No operation under way uses the bytes.
    pub unsafe fn into_vec(self) -> Vec<u8> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the parts are those of the vector that `new` took over.
        unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.len, this.capacity) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the parts are those of the vector that `new` took over. The owner has closed the
        // endpoint, or no operation is under way.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}
