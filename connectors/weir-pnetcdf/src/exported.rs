//! Declares functions that programs call in the place of PnetCDF's.

/// Declares a function: its name, its arguments, and its action, which can call PnetCDF's function of the same name by a closure.
macro_rules! around {
    ($name:expr, $function:ident($($argument:ident: $kind:ty),* $(,)?), |$call:ident| $act:expr) => {
        /// The function of PnetCDF with this exported name. If one of our assertions fails, it fails with `NC_EINTERNAL`.
        ///
        /// # Safety
        ///
        /// As PnetCDF's.
        #[export_name = $name]
        pub unsafe extern "C" fn $function($($argument: $kind),*) -> core::ffi::c_int {
            type Call = unsafe extern "C" fn($($kind),*) -> core::ffi::c_int;
            static CALL: std::sync::OnceLock<Option<Call>> = std::sync::OnceLock::new();
            let $call = || {
                let find = || {
                    let name = core::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()).ok()?;
                    // SAFETY: PnetCDF's function has these arguments.
                    unsafe { weir_connect::symbols::function(name) }
                };
                match CALL.get_or_init(find) {
                    // SAFETY: the arguments are valid for PnetCDF, by the caller; `call` is its function.
                    Some(call) => $crate::library::inside(|| unsafe { call($($argument),*) }),
                    None => $crate::library::NC_ENOTBUILT,
                }
            };
            // SAFETY: the arguments are valid for PnetCDF, by the caller; if the function is collective, all processes call it.
            #[allow(unused_unsafe, reason = "some look at numbers alone")]
            let act = || unsafe { $act };
            weir_connect::bugs::contain($name, act, || $crate::library::NC_EINTERNAL)
        }
    };
}
pub(crate) use around;

/// Declares a function with an action before PnetCDF's. If the action returns a code, that is the result; otherwise PnetCDF's is.
macro_rules! exported {
    ($name:expr, $function:ident($($argument:ident: $kind:ty),* $(,)?), $act:expr) => {
        $crate::exported::around!($name, $function($($argument: $kind),*), |call| $act.unwrap_or_else(call));
    };
}
pub(crate) use exported;
