//! The control block of asynchronous I/O, as glibc lays it out.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicIsize};

/// `struct aiocb` of 64-bit glibc, with the names of its private fields.
#[repr(C)]
#[derive(Debug)]
pub struct ControlBlock {
    pub(crate) fd: c_int,
    pub(crate) opcode: c_int,
    priority: c_int,
    pub(crate) buffer: *mut c_void,
    pub(crate) length: usize,
    pub(crate) event: Event,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    pub(crate) error: AtomicI32,
    pub(crate) result: AtomicIsize,
    pub(crate) offset: i64,
    reserved: [u8; 32],
}

/// `struct sigevent`.
#[repr(C)]
#[derive(Debug)]
pub struct Event {
    pub(crate) value: usize,
    pub(crate) signal: c_int,
    pub(crate) how: c_int,
    pub(crate) function: Option<unsafe extern "C-unwind" fn(usize)>,
    pub(crate) attributes: *const libc::pthread_attr_t,
    pad: [u8; 32],
}

const _: () = assert!(size_of::<Event>() == 64);
const _: () = assert!(core::mem::offset_of!(ControlBlock, error) == 112);
const _: () = assert!(core::mem::offset_of!(ControlBlock, offset) == 128);
