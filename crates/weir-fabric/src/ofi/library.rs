//! libfabric, loaded at run time: `dlopen`, its six exported functions, and lists of the providers'
//! offers.
//!
//! Symbols are looked up with the versions whose structures `abi` has: a library may have others of
//! the same names. The library is never closed, since providers leave threads and exit handlers
//! behind.

use core::ffi::{c_char, c_int, c_void, CStr};
use std::ffi::CString;
use std::net::SocketAddr;
use std::ptr::{null, null_mut, NonNull};
use std::sync::OnceLock;

use super::abi;

/// The oldest known version, and the first one that is too new, major and minor: the structures of
/// 1.10 are known, and 2.x keeps the symbol versions used here.
const VERSIONS: std::ops::Range<(u32, u32)> = (1, 10)..(3, 0);
/// The requested API version.
pub const API_VERSION: u32 = 0x0001_000A;
/// The library's file name.
const NAME: &CStr = c"libfabric.so.1";

/// The reason why libfabric cannot be used here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unusable {
    /// The loader does not find the library, or something that it needs.
    #[error("it cannot be loaded: {0}")]
    Absent(String),
    /// An unknown version.
    #[error("its version {0}.{1} is none of 1.10 to 2.x")]
    Version(u32, u32),
    /// The file is not libfabric.
    #[error("it has no {0}")]
    Symbol(&'static str),
    /// No provider has the needed features.
    #[error("no provider {0}")]
    Provider(String),
    /// A provider failed.
    #[error("{provider}: {call}: {why}")]
    Call {
        /// The provider.
        provider: String,
        /// The call that failed.
        call: &'static str,
        /// Its error.
        why: String,
    },
}

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const abi::Info,
    *mut *mut abi::Info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut abi::Info);
type DupInfo = unsafe extern "C" fn(*const abi::Info) -> *mut abi::Info;
type OpenFabric =
    unsafe extern "C" fn(*mut abi::FabricAttr, *mut *mut abi::Fabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type Version = unsafe extern "C" fn() -> u32;

/// The loaded library.
#[derive(Debug)]
pub struct Library {
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    /// `fi_fabric`.
    pub fabric: OpenFabric,
    strerror: StrError,
    version: u32,
}

/// The library, loaded at the first call.
pub fn library() -> Result<&'static Library, Unusable> {
    static LIBRARY: OnceLock<Result<Library, Unusable>> = OnceLock::new();
    LIBRARY
        .get_or_init(Library::load)
        .as_ref()
        .map_err(Clone::clone)
}

impl Library {
    fn load() -> Result<Library, Unusable> {
        // SAFETY: the name is a C string; constructors of what it names run here, which is what
        // an administrator who installs libfabric asks for.
        let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(Unusable::Absent(loader_error()));
        };
        let symbol = |name: &'static CStr, version: &CStr| {
            // SAFETY: the handle is open, and the names are C strings.
            let found = unsafe { libc::dlvsym(handle.as_ptr(), name.as_ptr(), version.as_ptr()) };
            NonNull::new(found).ok_or(Unusable::Symbol(name.to_str().unwrap_or("")))
        };
        let version = symbol(c"fi_version", c"FABRIC_1.0")?;
        // SAFETY: that is `uint32_t fi_version(void)`.
        let version = unsafe { std::mem::transmute::<NonNull<c_void>, Version>(version)() };
        let parts = (version >> 16, version & 0xFFFF);
        if !VERSIONS.contains(&parts) {
            return Err(Unusable::Version(parts.0, parts.1));
        }
        let getinfo = symbol(c"fi_getinfo", c"FABRIC_1.3")?;
        let freeinfo = symbol(c"fi_freeinfo", c"FABRIC_1.3")?;
        let dupinfo = symbol(c"fi_dupinfo", c"FABRIC_1.3")?;
        let fabric = symbol(c"fi_fabric", c"FABRIC_1.1")?;
        let strerror = symbol(c"fi_strerror", c"FABRIC_1.0")?;
        // SAFETY: a symbol of a name and version has the type that the header of that version
        // gives it, which is that of the field; and the library is never closed.
        unsafe {
            Ok(Library {
                getinfo: std::mem::transmute::<NonNull<c_void>, GetInfo>(getinfo),
                freeinfo: std::mem::transmute::<NonNull<c_void>, FreeInfo>(freeinfo),
                dupinfo: std::mem::transmute::<NonNull<c_void>, DupInfo>(dupinfo),
                fabric: std::mem::transmute::<NonNull<c_void>, OpenFabric>(fabric),
                strerror: std::mem::transmute::<NonNull<c_void>, StrError>(strerror),
                version,
            })
        }
    }

    /// The version, for example `1.17`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version >> 16, self.version & 0xFFFF)
    }

    /// The text of an error code of either sign.
    pub fn error(&self, code: c_int) -> String {
        // SAFETY: fi_strerror takes any number and gives a static string or null.
        let text = unsafe { (self.strerror)(code.saturating_abs()) };
        if text.is_null() {
            return format!("error {code}");
        }
        // SAFETY: a string of the library's, which ends with 0 and is read at once.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// The providers' offers, best first, of reliable datagram endpoints that send messages and
    /// have all of `caps`. `source` is this node's address, for providers with addresses of that
    /// kind.
    pub fn offers(
        &'static self,
        provider: Option<&str>,
        source: Option<SocketAddr>,
        caps: u64,
    ) -> Result<ProviderOffers, Unusable> {
        let hints = self.hints(provider, caps)?;
        let node = source.map(|source| source.ip().to_string());
        let node = node.and_then(|node| CString::new(node).ok());
        let service = source.and_then(|source| CString::new(source.port().to_string()).ok());
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        let flags = if source.is_some() { abi::SOURCE } else { 0 };
        let mut first = null_mut();
        // SAFETY: node and service are C strings or null, hints are whole, `first` is written.
        let result = unsafe {
            (self.getinfo)(
                API_VERSION,
                pointer(&node),
                pointer(&service),
                flags,
                hints.first.as_ptr(),
                &raw mut first,
            )
        };
        match NonNull::new(first) {
            Some(first) if result == 0 => Ok(ProviderOffers {
                library: self,
                first,
            }),
            _ => {
                let what = provider.unwrap_or("that is not left out");
                Err(Unusable::Provider(if -result == abi::ENODATA {
                    format!("{what} offers reliable datagrams here")
                } else {
                    format!("{what}: {}", self.error(result))
                }))
            }
        }
    }

    fn hints(&'static self, provider: Option<&str>, caps: u64) -> Result<ProviderOffers, Unusable> {
        // SAFETY: dupinfo of null allocates an info with all its attributes, or gives null.
        let hints = NonNull::new(unsafe { (self.dupinfo)(null()) });
        let first = hints.ok_or(Unusable::Symbol("memory for hints"))?;
        let hints = ProviderOffers {
            library: self,
            first,
        };
        // SAFETY: just allocated, with its attributes, and ours alone. The name is of malloc,
        // as freeinfo frees it.
        unsafe {
            let info = &mut *first.as_ptr();
            info.caps = caps;
            info.mode = abi::CONTEXT | abi::CONTEXT2;
            (*info.ep_attr).kind = abi::EP_RDM;
            let domain = &mut *info.domain_attr;
            domain.mr_mode = abi::MR_LOCAL
                | abi::MR_VIRT_ADDR
                | abi::MR_ALLOCATED
                | abi::MR_PROV_KEY
                | abi::MR_ENDPOINT;
            domain.threading = abi::THREAD_DOMAIN;
            domain.control_progress = abi::PROGRESS_MANUAL;
            domain.data_progress = abi::PROGRESS_MANUAL;
            domain.resource_mgmt = abi::RM_ENABLED;
            if let Some(name) = provider.and_then(|name| CString::new(name).ok()) {
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        Ok(hints)
    }
}

fn loader_error() -> String {
    // SAFETY: dlerror gives a string of the loader's that is read before its next call on this
    // thread, or null.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "for no reason".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// An owned list of infos.
#[derive(Debug)]
pub struct ProviderOffers {
    library: &'static Library,
    first: NonNull<abi::Info>,
}

// SAFETY: the list is plain memory, which no other thread knows of.
unsafe impl Send for ProviderOffers {}

impl Drop for ProviderOffers {
    fn drop(&mut self) {
        // SAFETY: the list came from getinfo or dupinfo, and is not used after this.
        unsafe { (self.library.freeinfo)(self.first.as_ptr()) }
    }
}

impl ProviderOffers {
    /// The offers, in the library's order.
    pub fn iter(&self) -> impl Iterator<Item = ProviderOffer<'_>> {
        let mut next = self.first.as_ptr();
        std::iter::from_fn(move || {
            // SAFETY: null, or an info of the list, which lives as long as `self`.
            let info = unsafe { next.as_ref() }?;
            next = info.next;
            Some(ProviderOffer { info })
        })
    }
}

/// One offer of a list.
#[derive(Clone, Copy)]
pub struct ProviderOffer<'a> {
    info: &'a abi::Info,
}

impl<'a> ProviderOffer<'a> {
    /// The provider's name, for example `tcp;ofi_rxm`.
    pub fn provider(self) -> String {
        // SAFETY: getinfo gives each info a fabric_attr; its name is null or a C string.
        unsafe {
            let name = self.info.fabric_attr.as_ref().map(|attr| attr.prov_name);
            match name {
                Some(name) if !name.is_null() => CStr::from_ptr(name).to_string_lossy().into(),
                _ => String::new(),
            }
        }
    }

    /// The info; its attributes are not null.
    pub fn info(self) -> &'a abi::Info {
        self.info
    }

    /// The required memory registration, the length of keys in bytes, and the longest message.
    pub fn limits(self) -> Option<(c_int, usize, usize)> {
        // SAFETY: null, or attributes that live as long as the info.
        unsafe {
            let domain = self.info.domain_attr.as_ref()?;
            let ep = self.info.ep_attr.as_ref()?;
            Some((domain.mr_mode, domain.mr_key_size, ep.max_msg_size))
        }
    }
}
