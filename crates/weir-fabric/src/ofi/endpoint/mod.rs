//! An open endpoint of reliable datagrams with its queue and its address vector: opening, closing,
//! memory for remote reads. `transfer` sends and receives.
//!
//! Invariants:
//! - one thread at a time calls the provider (`FI_THREAD_DOMAIN`), which `&mut self` and the
//!   missing `Sync` ensure;
//! - the endpoint owns bytes that an operation under way may use, and frees them only when the
//!   operation has ended or the endpoint is closed. If a provider cannot close the endpoint they
//!   are leaked.

mod opening;
mod transfer;

use core::ffi::c_int;
use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::ptr::{null_mut, NonNull};

use self::opening::{function, open, Calls, Failure, OpenObjects};
use self::transfer::{Operation, ReadLanding, Slots};
use super::abi;
use super::library::{library, Library, ProviderOffer, ProviderOffers, Unusable};
use super::memory::{Bytes, OpenObject};
use super::packet::PACKET_MOST;
use super::EndpointOptions;

pub use self::transfer::Completion;

/// Unsuitable providers: they spin while they wait, are for tests or for one node, or lose
/// messages. Hooks and layers on other layers are unsuitable, too.
const UNSUITABLE: &[&str] = &[
    "net", "sockets", "shm", "sm2", "udp", "UDP", "usnic", "rstream",
];
/// Providers of networks faster than TCP, best first.
pub const FAST: &[&str] = &[
    "cxi",
    "efa",
    "opx",
    "psm3",
    "psm2",
    "verbs;ofi_rxm",
    "verbs",
];
/// The longest name of an endpoint.
pub const NAME_MOST: usize = 512;

/// Returns true if weir can use a provider.
pub fn is_usable(provider: &str) -> bool {
    let core = provider.split(';').next().unwrap_or("");
    !UNSUITABLE.contains(&core) && !provider.contains("hook") && !provider.contains("ofi_rxd")
}

/// A peer's index in the address vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address(pub(super) abi::Addr);

/// Memory that a peer may read.
pub struct Readable {
    /// `None` if the provider has no remote reads.
    mr: Option<OpenObject<abi::Mr>>,
    bytes: Bytes,
}

/// The location of memory that a peer may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    /// A random key, which permits the read.
    pub key: u64,
    /// The start address.
    pub address: u64,
}

/// Memory that the provider may use.
struct ProviderMemory {
    pub slots: Slots,
    pub landings: HashMap<u64, ReadLanding>,
    pub readable: HashMap<u64, Readable>,
    /// By the addresses of their contexts.
    pub operations: HashMap<usize, NonNull<Operation>>,
}

/// An endpoint.
pub struct Endpoint {
    pub(super) library: &'static Library,
    provider: String,
    name: Vec<u8>,
    mr_mode: c_int,
    key_mask: u64,
    calls: Calls,
    memory: ManuallyDrop<ProviderMemory>,
    ready: VecDeque<Completion>,
    wait_fd: RawFd,
    /// Consecutive wake-ups without a completion.
    spurious_wakes: u32,
    /// `None` after it is closed.
    ep: Option<OpenObject<abi::Ep>>,
    // Closed in this order.
    cq: OpenObject<abi::Cq>,
    av: OpenObject<abi::Av>,
    domain: OpenObject<abi::Domain>,
    fabric: OpenObject<abi::Fabric>,
    _info: ProviderOffers,
}

// SAFETY: nothing in it is bound to a thread; the domain was opened for threads that come one
// at a time, and the type is not Sync.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint. The error is that of the last attempt.
    pub fn open(choice: &EndpointOptions) -> Result<Endpoint, Unusable> {
        let (library, provider) = (library()?, choice.provider.as_deref());
        let mut error = None;
        let all = [abi::MSG | abi::RMA, abi::MSG];
        for caps in &all[usize::from(!choice.reads)..] {
            for source in [Some(choice.source), None] {
                let offers = match library.offers(provider, source, *caps) {
                    Ok(offers) => offers,
                    Err(why) => {
                        error.get_or_insert(why);
                        continue;
                    }
                };
                let Some(name) = choice.provider.clone().or_else(|| best_provider(&offers)) else {
                    continue;
                };
                match Endpoint::open_one(library, offers, &name) {
                    Ok(endpoint) => return Ok(endpoint),
                    Err(why) => error = Some(why),
                }
            }
        }
        Err(error.unwrap_or_else(|| Unusable::Provider("is of use here".to_owned())))
    }

    fn open_one(
        library: &'static Library,
        offers: ProviderOffers,
        provider: &str,
    ) -> Result<Endpoint, Unusable> {
        let failed = |(call, code): Failure| Unusable::Call {
            provider: provider.to_owned(),
            call,
            why: library.error(code),
        };
        let offer = offers.iter().find(|offer| offer.provider() == provider);
        let offer = offer.ok_or_else(|| failed(("fi_getinfo", abi::ENODATA)))?;
        let limits = offer.limits();
        let (mr_mode, key_bytes, longest) =
            limits.ok_or_else(|| failed(("fi_getinfo", libc::EINVAL)))?;
        if longest < PACKET_MOST {
            return Err(failed(("its longest message", libc::EMSGSIZE)));
        }
        let OpenObjects {
            calls,
            name,
            wait_fd,
            ep,
            cq,
            av,
            domain,
            fabric,
        } = OpenObjects::new(library, offer).map_err(failed)?;
        let mut endpoint = Endpoint {
            library,
            provider: provider.to_owned(),
            name,
            mr_mode,
            key_mask: match key_bytes {
                0..8 => (1 << (8 * key_bytes)) - 1,
                _ => u64::MAX,
            },
            calls,
            memory: ManuallyDrop::new(ProviderMemory {
                slots: Slots::default(),
                landings: HashMap::new(),
                readable: HashMap::new(),
                operations: HashMap::new(),
            }),
            ready: VecDeque::new(),
            wait_fd,
            spurious_wakes: 0,
            ep: Some(ep),
            cq,
            av,
            domain,
            fabric,
            _info: offers,
        };
        match endpoint.post_first_receives() {
            0 => Ok(endpoint),
            code => Err(failed(("fi_recv", code))),
        }
    }

    /// The provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The name by which others reach it.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns true if the provider has remote reads.
    pub fn reads(&self) -> bool {
        self.calls.read.is_some()
    }

    /// Adds a peer's name to the address vector.
    pub fn resolve(&mut self, name: &[u8]) -> Option<Address> {
        // Names of one provider have one length: another length is another provider's.
        if name.len() != self.name.len() {
            return None;
        }
        // SAFETY: the vector is open.
        let insert = unsafe { function!((*self.av.as_ptr()).ops, abi::OpsAv, insert) }?;
        let mut address = abi::ADDR_UNSPEC;
        // SAFETY: one name, of the length that the provider gives its names; it is copied.
        let count = unsafe {
            insert(
                self.av.as_ptr(),
                name.as_ptr().cast(),
                1,
                &raw mut address,
                0,
                null_mut(),
            )
        };
        (count == 1).then_some(Address(address))
    }

    /// Registers memory.
    pub(super) fn register(
        &self,
        bytes: &Bytes,
        access: u64,
        key: u64,
    ) -> Result<OpenObject<abi::Mr>, c_int> {
        let domain = self.domain.as_ptr();
        // SAFETY: the domain is open. The bytes stay where they are until the registration is
        // closed, which their owners do first.
        let mr: OpenObject<abi::Mr> = unsafe {
            let reg = function!((*domain).mr, abi::OpsMr, reg).ok_or(-libc::ENOSYS)?;
            let start = bytes.at(0, bytes.len()).cast_const().cast();
            let (fid, len) = (&raw mut (*domain).fid, bytes.len());
            open("fi_mr_reg", |out| {
                reg(fid, start, len, access, 0, key, 0, out, null_mut())
            })
            .map_err(|(_, code)| code)?
        };
        if self.mr_mode & abi::MR_ENDPOINT != 0 {
            let ep = self.ep.as_ref().ok_or(-libc::EINVAL)?;
            // SAFETY: the endpoint is open; registrations for others are closed before it.
            let code = unsafe { mr.bind(ep.fid(), 0) };
            if code != 0 {
                return Err(code);
            }
            // SAFETY: enabling takes no argument.
            let code = unsafe { mr.control(abi::ENABLE, null_mut()) };
            if code != 0 {
                return Err(code);
            }
        }
        Ok(mr)
    }

    /// Registers memory for local use, if the provider requires it.
    pub(super) fn register_local(
        &self,
        bytes: &Bytes,
        access: u64,
    ) -> Result<Option<OpenObject<abi::Mr>>, c_int> {
        if self.mr_mode & abi::MR_LOCAL == 0 {
            return Ok(None);
        }
        self.register(bytes, access, random() & self.key_mask)
            .map(Some)
    }

    /// Lets peers that know the location read `bytes`, until [`Endpoint::retract`].
    pub fn offer(&mut self, bytes: Vec<u8>) -> Result<RemoteMemory, c_int> {
        let bytes = Bytes::new(bytes);
        let wanted = random() & self.key_mask;
        let (mr, key) = if self.reads() {
            let mr = self.register(&bytes, abi::REMOTE_READ, wanted)?;
            // SAFETY: the registration is open.
            let key = unsafe { (*mr.as_ptr()).key };
            (Some(mr), key)
        } else {
            (None, wanted)
        };
        let address = match self.mr_mode & abi::MR_VIRT_ADDR {
            0 => 0,
            _ => bytes.at(0, 0) as u64,
        };
        let before = self.memory.readable.insert(key, Readable { mr, bytes });
        // The provider refuses a key in use, and a random key does not repeat.
        debug_assert!(before.is_none());
        Ok(RemoteMemory { key, address })
    }

    /// A range of offered memory, for peers without remote reads.
    pub fn read_offered(&mut self, key: u64, offset: u64, len: usize) -> Option<&[u8]> {
        let readable = self.memory.readable.get_mut(&key)?;
        let offset = usize::try_from(offset).ok()?;
        let left = readable.bytes.len().checked_sub(offset)?;
        // SAFETY: peers only read these bytes.
        Some(unsafe { readable.bytes.slice(offset, len.min(left)) })
    }

    /// Withdraws an offer.
    pub fn retract(&mut self, key: u64) {
        if let Some(Readable { mr, bytes }) = self.memory.readable.remove(&key) {
            match mr.map_or(Ok(()), OpenObject::close) {
                Ok(()) => drop(bytes),
                Err(code) => {
                    // A peer may still read it: it is leaked.
                    tracing::warn!(error = self.library.error(code), "memory stays registered");
                    std::mem::forget(bytes);
                }
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Registrations that are bound to the endpoint are closed before it.
        let readable: Vec<u64> = self.memory.readable.keys().copied().collect();
        for key in readable {
            self.retract(key);
        }
        let closed = self.ep.take().map_or(Ok(()), OpenObject::close);
        if let Err(code) = closed {
            let error = self.library.error(code);
            tracing::error!(error, "the endpoint stays open, and its memory in use");
            return;
        }
        for operation in std::mem::take(&mut self.memory.operations).into_values() {
            // SAFETY: each is of Box::into_raw and was in the table once; the endpoint is
            // closed, so that its operation has ended.
            drop(unsafe { Box::from_raw(operation.as_ptr()) });
        }
        // SAFETY: dropped once, here; nothing uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// The best provider: one of a network faster than TCP, else TCP with messages of any size.
fn best_provider(offers: &ProviderOffers) -> Option<String> {
    let names = offers
        .iter()
        .map(|offer: ProviderOffer<'_>| offer.provider());
    let rank = |name: &String| {
        let fast = FAST.iter().position(|fast| fast == name);
        fast.unwrap_or(FAST.len() + usize::from(!name.contains(';')))
    };
    names.filter(|name| is_usable(name)).min_by_key(rank)
}

/// An unpredictable number.
fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel gives random numbers");
    u64::from_le_bytes(bytes)
}
