//! libfabric's binary interface, as much of it as weir calls: structures and constants of the
//! headers of 1.10 and later, under their names there without the `fi_`. No code.
//!
//! Invariant: what is here has the size and the offsets that the headers give it, up to the
//! fields that are named; `layout.rs` compiles a C program that says so. Structures that
//! libfabric allocates may be longer than here; those that weir allocates are whole.

use core::ffi::{c_char, c_int, c_void};

/// A function that weir does not call.
pub type Unused = Option<unsafe extern "C" fn()>;
/// `fi_addr_t`: a peer, as the address vector numbers it.
pub type Addr = u64;

/// `FI_ADDR_UNSPEC`: any peer.
pub const ADDR_UNSPEC: Addr = u64::MAX;
/// `FI_MSG`: messages.
pub const MSG: u64 = 1 << 1;
/// `FI_RMA`: reads of remote memory.
pub const RMA: u64 = 1 << 2;
/// `FI_READ`.
pub const READ: u64 = 1 << 8;
/// `FI_RECV`.
pub const RECV: u64 = 1 << 10;
/// `FI_SEND`, which is `FI_TRANSMIT` too.
pub const SEND: u64 = 1 << 11;
/// `FI_REMOTE_READ`.
pub const REMOTE_READ: u64 = 1 << 12;
/// `FI_SOURCE`: the node that is asked for is this one.
pub const SOURCE: u64 = 1 << 57;
/// `FI_CONTEXT2`: an operation's context has room for the provider.
pub const CONTEXT2: u64 = 1 << 52;
/// `FI_CONTEXT`: the same, with less room.
pub const CONTEXT: u64 = 1 << 59;
/// `FI_MR_LOCAL`: local buffers are registered too.
pub const MR_LOCAL: c_int = 1 << 2;
/// `FI_MR_VIRT_ADDR`: remote memory is addressed as its owner does.
pub const MR_VIRT_ADDR: c_int = 1 << 4;
/// `FI_MR_ALLOCATED`: registered memory has pages.
pub const MR_ALLOCATED: c_int = 1 << 5;
/// `FI_MR_PROV_KEY`: the provider chooses keys.
pub const MR_PROV_KEY: c_int = 1 << 6;
/// `FI_MR_ENDPOINT`: memory is bound to the endpoint.
pub const MR_ENDPOINT: c_int = 1 << 9;
/// `FI_EP_RDM`: endpoints of reliable datagrams.
pub const EP_RDM: c_int = 3;
/// `FI_THREAD_DOMAIN`: one thread at a time is in a domain.
pub const THREAD_DOMAIN: c_int = 3;
/// `FI_PROGRESS_MANUAL`: what reads the queue drives the provider.
pub const PROGRESS_MANUAL: c_int = 2;
/// `FI_RM_ENABLED`: full queues refuse instead of losing.
pub const RM_ENABLED: c_int = 2;
/// `FI_AV_TABLE`.
pub const AV_TABLE: c_int = 2;
/// `FI_CQ_FORMAT_MSG`.
pub const CQ_FORMAT_MSG: c_int = 2;
/// `FI_WAIT_FD`: a descriptor to poll.
pub const WAIT_FD: c_int = 3;
/// `FI_GETWAIT`: asks for that descriptor.
pub const GETWAIT: c_int = 5;
/// `FI_ENABLE`.
pub const ENABLE: c_int = 6;
/// `FI_EAGAIN`.
pub const EAGAIN: isize = 11;
/// `FI_ENODATA`: no provider does what is asked.
pub const ENODATA: c_int = 61;
/// `FI_EAVAIL`: an operation failed; its error is to be read.
pub const EAVAIL: isize = 259;

/// `struct fid`: what every object begins with.
#[repr(C)]
pub struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const Ops,
}

/// `struct fi_ops`.
#[repr(C)]
pub struct Ops {
    pub size: usize,
    pub close: Option<unsafe extern "C" fn(*mut Fid) -> c_int>,
    pub bind: Option<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int>,
    pub control: Option<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int>,
}

/// `struct fi_info`.
#[repr(C)]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut c_void,
    pub rx_attr: *mut c_void,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

/// `struct fi_ep_attr`, its beginning.
#[repr(C)]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
}

/// `struct fi_domain_attr`, its beginning.
#[repr(C)]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
}

/// `struct fi_fabric_attr`.
#[repr(C)]
pub struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// `struct fid_fabric`, its beginning.
#[repr(C)]
pub struct Fabric {
    pub fid: Fid,
    pub ops: *const OpsFabric,
}

/// `struct fi_ops_fabric`.
#[repr(C)]
pub struct OpsFabric {
    pub size: usize,
    pub domain: Option<
        unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
    >,
    pub passive_ep: Unused,
    pub eq_open: Unused,
    pub wait_open: Unused,
    pub trywait: Option<unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int>,
}

/// `struct fid_domain`.
#[repr(C)]
pub struct Domain {
    pub fid: Fid,
    pub ops: *const OpsDomain,
    pub mr: *const OpsMr,
}

/// `struct fi_ops_domain`, its beginning.
#[repr(C)]
pub struct OpsDomain {
    pub size: usize,
    pub av_open:
        Option<unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int>,
    pub cq_open:
        Option<unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int>,
    pub endpoint:
        Option<unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int>,
}

/// `struct fi_ops_mr`, its beginning.
#[repr(C)]
pub struct OpsMr {
    pub size: usize,
    pub reg: Option<
        unsafe extern "C" fn(
            *mut Fid,
            *const c_void,
            usize,
            u64,
            u64,
            u64,
            u64,
            *mut *mut Mr,
            *mut c_void,
        ) -> c_int,
    >,
}

/// `struct fid_mr`.
#[repr(C)]
pub struct Mr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// `struct fi_av_attr`.
#[repr(C)]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// `struct fid_av`.
#[repr(C)]
pub struct Av {
    pub fid: Fid,
    pub ops: *const OpsAv,
}

/// `struct fi_ops_av`, its beginning.
#[repr(C)]
pub struct OpsAv {
    pub size: usize,
    pub insert: Option<
        unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut Addr, u64, *mut c_void) -> c_int,
    >,
}

/// `struct fi_cq_attr`.
#[repr(C)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: c_int,
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_cond: c_int,
    pub wait_set: *mut c_void,
}

/// `struct fid_cq`.
#[repr(C)]
pub struct Cq {
    pub fid: Fid,
    pub ops: *const OpsCq,
}

/// `struct fi_ops_cq`, its beginning.
#[repr(C)]
pub struct OpsCq {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize>,
    pub readfrom: Unused,
    pub readerr: Option<unsafe extern "C" fn(*mut Cq, *mut CqErrEntry, u64) -> isize>,
}

/// `struct fi_cq_msg_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CqMsgEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// `struct fi_cq_err_entry`.
#[repr(C)]
pub struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    /// `src_addr` of 1.20 and later.
    pub src_addr: Addr,
}

/// `struct fid_ep`, its beginning.
#[repr(C)]
pub struct Ep {
    pub fid: Fid,
    pub ops: *const c_void,
    pub cm: *const OpsCm,
    pub msg: *const OpsMsg,
    pub rma: *const OpsRma,
}

/// `struct fi_ops_cm`, its beginning.
#[repr(C)]
pub struct OpsCm {
    pub size: usize,
    pub setname: Unused,
    pub getname: Option<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>,
}

/// Of `struct fi_ops_msg`: `fi_recv`.
pub type Recv =
    unsafe extern "C" fn(*mut Ep, *mut c_void, usize, *mut c_void, Addr, *mut c_void) -> isize;
/// Of `struct fi_ops_msg`: `fi_send`.
pub type Send =
    unsafe extern "C" fn(*mut Ep, *const c_void, usize, *mut c_void, Addr, *mut c_void) -> isize;
/// Of `struct fi_ops_rma`: `fi_read`.
pub type Read = unsafe extern "C" fn(
    *mut Ep,
    *mut c_void,
    usize,
    *mut c_void,
    Addr,
    u64,
    u64,
    *mut c_void,
) -> isize;

/// `struct fi_ops_msg`, its beginning.
#[repr(C)]
pub struct OpsMsg {
    pub size: usize,
    pub recv: Option<Recv>,
    pub recvv: Unused,
    pub recvmsg: Unused,
    pub send: Option<Send>,
}

/// `struct fi_ops_rma`, its beginning.
#[repr(C)]
pub struct OpsRma {
    pub size: usize,
    pub read: Option<Read>,
}

/// `struct fi_context2`: the provider's part of an operation's context.
#[repr(C)]
pub struct Context2 {
    pub internal: [*mut c_void; 8],
}
