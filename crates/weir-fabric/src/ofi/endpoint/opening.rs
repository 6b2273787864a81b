//! Opens the objects of an endpoint, one after the other: fabric, domain, address vector,
//! completion queue, and the endpoint itself.
//!
//! A provider's functions are in tables of its objects. They are looked up once, when the
//! endpoint is enabled, since a provider may change them until then.

use core::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::{null, null_mut, NonNull};

use super::NAME_MOST;
use crate::ofi::abi;
use crate::ofi::library::{Library, ProviderOffer};
use crate::ofi::memory::{Object, OpenObject};

/// The least number of completions that the queue holds.
const QUEUE: usize = 4096;

/// The call that failed, and its error.
pub type Failure = (&'static str, c_int);

/// The provider's functions.
pub struct Calls {
    pub send: abi::Send,
    pub recv: abi::Recv,
    /// `None` if the provider has no remote reads.
    pub read: Option<abi::Read>,
    pub cq_read: unsafe extern "C" fn(*mut abi::Cq, *mut c_void, usize) -> isize,
    pub cq_readerr: unsafe extern "C" fn(*mut abi::Cq, *mut abi::CqErrEntry, u64) -> isize,
    pub trywait: unsafe extern "C" fn(*mut abi::Fabric, *mut *mut abi::Fid, c_int) -> c_int,
}

/// The open objects, dropped in this order.
pub struct OpenObjects {
    pub calls: Calls,
    /// The endpoint's name.
    pub name: Vec<u8>,
    /// The queue's descriptor to wait for; the queue owns it.
    pub wait_fd: RawFd,
    pub ep: OpenObject<abi::Ep>,
    pub cq: OpenObject<abi::Cq>,
    pub av: OpenObject<abi::Av>,
    pub domain: OpenObject<abi::Domain>,
    pub fabric: OpenObject<abi::Fabric>,
}

/// A function of a table, if it exists and lies within the size that the table states. For use in
/// an unsafe block: the table is null, or begins with its size and lives as long as its object,
/// which is open.
macro_rules! function {
    ($table:expr, $of:ty, $name:ident) => {{
        let table: *const $of = $table;
        if !table.is_null() && (*table).size > core::mem::offset_of!($of, $name) {
            (*table).$name
        } else {
            None
        }
    }};
}
pub(super) use function;

/// Calls a function that opens an object, and takes the object over.
///
/// # Safety
/// When `call` returns 0 it has written an open object that nothing else closes.
pub unsafe fn open<T: Object>(
    what: &'static str,
    call: impl FnOnce(*mut *mut T) -> c_int,
) -> Result<OpenObject<T>, Failure> {
    let mut object = null_mut();
    let code = call(&raw mut object);
    match NonNull::new(object) {
        // SAFETY: the caller's.
        Some(object) if code == 0 => Ok(unsafe { OpenObject::new(object) }),
        _ if code == 0 => Err((what, libc::ENOSYS)),
        _ => Err((what, code)),
    }
}

fn check(what: &'static str, code: c_int) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err((what, code)),
    }
}

fn present<T>(what: &'static str, function: Option<T>) -> Result<T, Failure> {
    function.ok_or((what, libc::ENOSYS))
}

impl OpenObjects {
    /// Opens an offer.
    pub fn new(library: &Library, offer: ProviderOffer<'_>) -> Result<OpenObjects, Failure> {
        let info = (&raw const *offer.info()).cast_mut();
        // SAFETY: the info is one of getinfo's, with its attributes.
        let fabric: OpenObject<abi::Fabric> = unsafe {
            open("fi_fabric", |out| {
                (library.fabric)((*info).fabric_attr, out, null_mut())
            })
        }?;
        // SAFETY: the fabric is open, and the info is of the same provider.
        let domain: OpenObject<abi::Domain> = unsafe {
            let call = function!((*fabric.as_ptr()).ops, abi::OpsFabric, domain);
            let call = present("fi_domain", call)?;
            open("fi_domain", |out| {
                call(fabric.as_ptr(), info, out, null_mut())
            })
        }?;
        let av = open_vector(&domain)?;
        let cq = open_queue(&domain)?;
        // SAFETY: the domain is open, and the info is of the same provider.
        let ep: OpenObject<abi::Ep> = unsafe {
            let call = function!((*domain.as_ptr()).ops, abi::OpsDomain, endpoint);
            let call = present("fi_endpoint", call)?;
            open("fi_endpoint", |out| {
                call(domain.as_ptr(), info, out, null_mut())
            })
        }?;
        // SAFETY: queue and vector are closed after the endpoint: see the order of the fields.
        // Enabling takes no argument.
        unsafe {
            check("fi_ep_bind", ep.bind(cq.fid(), abi::SEND | abi::RECV))?;
            check("fi_ep_bind", ep.bind(av.fid(), 0))?;
            check("fi_enable", ep.control(abi::ENABLE, null_mut()))?;
        }
        let mut wait_fd: c_int = -1;
        // SAFETY: GETWAIT of a queue that waits by a descriptor writes one.
        let code = unsafe { cq.control(abi::GETWAIT, (&raw mut wait_fd).cast()) };
        check("a descriptor to wait for", code)?;
        let reads = offer.info().caps & abi::RMA != 0;
        Ok(OpenObjects {
            calls: Calls::look_up(&fabric, &cq, &ep, reads)?,
            name: name_of(&ep)?,
            wait_fd,
            ep,
            cq,
            av,
            domain,
            fabric,
        })
    }
}

fn open_vector(domain: &OpenObject<abi::Domain>) -> Result<OpenObject<abi::Av>, Failure> {
    let mut attr = abi::AvAttr {
        kind: abi::AV_TABLE,
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: null(),
        map_addr: null_mut(),
        flags: 0,
    };
    // SAFETY: the domain is open, and the attributes are whole.
    unsafe {
        let call = function!((*domain.as_ptr()).ops, abi::OpsDomain, av_open);
        let call = present("fi_av_open", call)?;
        open("fi_av_open", |out| {
            call(domain.as_ptr(), &raw mut attr, out, null_mut())
        })
    }
}

fn open_queue(domain: &OpenObject<abi::Domain>) -> Result<OpenObject<abi::Cq>, Failure> {
    let mut attr = abi::CqAttr {
        size: QUEUE,
        flags: 0,
        format: abi::CQ_FORMAT_MSG,
        wait_obj: abi::WAIT_FD,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: null_mut(),
    };
    // SAFETY: the domain is open, and the attributes are whole.
    unsafe {
        let call = function!((*domain.as_ptr()).ops, abi::OpsDomain, cq_open);
        let call = present("fi_cq_open", call)?;
        open("a queue that one can wait for", |out| {
            call(domain.as_ptr(), &raw mut attr, out, null_mut())
        })
    }
}

impl Calls {
    fn look_up(
        fabric: &OpenObject<abi::Fabric>,
        cq: &OpenObject<abi::Cq>,
        ep: &OpenObject<abi::Ep>,
        reads: bool,
    ) -> Result<Calls, Failure> {
        // SAFETY: the objects are open.
        let (fabric, cq, ep) = unsafe { (&*fabric.as_ptr(), &*cq.as_ptr(), &*ep.as_ptr()) };
        // SAFETY: these are their tables.
        unsafe {
            Ok(Calls {
                send: present("fi_send", function!(ep.msg, abi::OpsMsg, send))?,
                recv: present("fi_recv", function!(ep.msg, abi::OpsMsg, recv))?,
                read: match reads {
                    true => function!(ep.rma, abi::OpsRma, read),
                    false => None,
                },
                cq_read: present("fi_cq_read", function!(cq.ops, abi::OpsCq, read))?,
                cq_readerr: present("fi_cq_readerr", function!(cq.ops, abi::OpsCq, readerr))?,
                trywait: present("fi_trywait", function!(fabric.ops, abi::OpsFabric, trywait))?,
            })
        }
    }
}

fn name_of(ep: &OpenObject<abi::Ep>) -> Result<Vec<u8>, Failure> {
    // SAFETY: the endpoint is open.
    let call = unsafe { function!((*ep.as_ptr()).cm, abi::OpsCm, getname) };
    let call = present("fi_getname", call)?;
    let (mut name, mut len) = (vec![0; NAME_MOST], NAME_MOST);
    // SAFETY: the endpoint is enabled, and `len` says how much `name` holds.
    let code = unsafe { call(ep.fid(), name.as_mut_ptr().cast(), &raw mut len) };
    check("fi_getname", code)?;
    name.truncate(len);
    Ok(name)
}
