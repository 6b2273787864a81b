//! How the interposer is linked.

fn main() {
    // What one wrapper does by another is ours, whoever else puts himself before libc: a library that
    // patches the calls of all libraries (UCX, of mmap) makes the system call by `syscall`, which is ours.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rerun-if-changed=build.rs");
}
