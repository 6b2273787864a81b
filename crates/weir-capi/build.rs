//! How `libweir.so` is linked: under the name that programs ask for at run time, which changes
//! with `WEIR_ABI`; and never unloaded, for the process's memory of weir stays mapped.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweir.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
