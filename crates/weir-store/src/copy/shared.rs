//! Loads from memory that other processes store to, and stores to memory that they load from.
//!
//! The compiler must treat such memory like a device's: a plain load may be done twice, a plain
//! store left out, and a race with one is undefined behaviour. So each access here is one
//! instruction (by `asm!`, into which the compiler does not look) or a volatile one. A race then
//! yields a mixture of old and new bytes, in pieces of the width of a move.
//!
//! Left out: order. `copy` fences streamed stores; others are ordered by the word that publishes
//! them, which is stored with Release.

/// A half of 32 bytes, on its way through a register.
#[cfg(target_arch = "x86_64")]
pub(super) use core::arch::x86_64::__m128i as Vector16;
/// The same, through two.
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Vector16 = [u64; 2];

/// Defines a load and a store of one width, by the instructions of the two processors.
macro_rules! moves {
    ($load:ident, $store:ident, $type:ty, $class:ident: $x86_from:literal, $x86_into:literal, $arm_from:literal, $arm_into:literal) => {
        /// # Safety
        ///
        /// That many bytes are readable at `from`, of any alignment.
        #[inline(always)]
        #[allow(clippy::inline_always)] // one instruction
        pub(super) unsafe fn $load(from: *const u8) -> $type {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: one load, of as many bytes as are readable at `from`, by the caller.
            unsafe {
                let value: $type;
                core::arch::asm!($x86_from, out($class) value, in(reg) from, options(nostack, preserves_flags, readonly));
                value
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            // SAFETY: one load, of as many bytes as are readable at `from`, by the caller.
            unsafe {
                let value: $type;
                core::arch::asm!($arm_from, out(reg) value, in(reg) from, options(nostack, preserves_flags, readonly));
                value
            }
            #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
            // SAFETY: that many bytes are readable at `from`, by the caller. They need no
            // alignment, and all are right for the type.
            unsafe {
                let bytes = from.cast::<[u8; size_of::<$type>()]>().read_volatile();
                (&raw const bytes).cast::<$type>().read_unaligned()
            }
        }

        /// # Safety
        ///
        /// That many bytes are writable at `to`, of any alignment.
        #[inline(always)]
        #[allow(clippy::inline_always)] // one instruction
        pub(super) unsafe fn $store(to: *mut u8, value: $type) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: one store, of as many bytes as are writable at `to`, by the caller.
            unsafe {
                core::arch::asm!($x86_into, in(reg) to, in($class) value, options(nostack, preserves_flags));
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            // SAFETY: one store, of as many bytes as are writable at `to`, by the caller.
            unsafe {
                core::arch::asm!($arm_into, in(reg) to, in(reg) value, options(nostack, preserves_flags));
            }
            #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
            // SAFETY: that many bytes are writable at `to`, by the caller. They need no alignment.
            unsafe {
                let bytes = (&raw const value).cast::<[u8; size_of::<$type>()]>();
                to.cast::<[u8; size_of::<$type>()]>().write_volatile(bytes.read());
            }
        }
    };
}

moves!(load_8, store_8, u64, reg: "mov {}, [{}]", "mov [{}], {}", "ldr {}, [{}]", "str {1}, [{0}]");
moves!(load_4, store_4, u32, reg: "mov {:e}, [{}]", "mov [{}], {:e}", "ldr {:w}, [{}]", "str {1:w}, [{0}]");
moves!(load_2, store_2, u16, reg: "mov {:x}, [{}]", "mov [{}], {:x}", "ldrh {:w}, [{}]", "strh {1:w}, [{0}]");

#[cfg(target_arch = "x86_64")]
moves!(load_16, store_16, Vector16, xmm_reg: "movdqu {}, [{}]", "movdqu [{}], {}", "", "");

/// Stores four times 16 bytes, one behind the other.
///
/// # Safety
///
/// 64 bytes are writable at `to`, of any alignment.
#[inline(always)]
#[allow(clippy::inline_always)] // four instructions
pub(super) unsafe fn store_line(to: *mut u8, line: [Vector16; 4]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: four stores to the 64 bytes that are writable at `to`, by the caller. Their addresses
    // are parts of the instructions, so that they take no others.
    unsafe {
        let [a, b, c, d] = line;
        core::arch::asm!(
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            to = in(reg) to,
            a = in(xmm_reg) a,
            b = in(xmm_reg) b,
            c = in(xmm_reg) c,
            d = in(xmm_reg) d,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    for (i, part) in line.into_iter().enumerate() {
        // SAFETY: 16 of the 64 bytes that are writable at `to`, by the caller.
        unsafe { store_16(to.add(16 * i), part) };
    }
}

/// # Safety
///
/// 16 bytes are readable at `from`, of any alignment.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn load_16(from: *const u8) -> Vector16 {
    // SAFETY: 16 bytes are readable at `from`, by the caller.
    unsafe { [load_8(from), load_8(from.add(8))] }
}

/// # Safety
///
/// 16 bytes are writable at `to`, of any alignment.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn store_16(to: *mut u8, value: Vector16) {
    // SAFETY: 16 bytes are writable at `to`, by the caller.
    unsafe {
        store_8(to, value[0]);
        store_8(to.add(8), value[1]);
    }
}

/// # Safety
///
/// The byte at `from` is readable.
#[inline]
pub(super) unsafe fn load_1(from: *const u8) -> u8 {
    // SAFETY: the byte at `from` is readable, by the caller.
    unsafe { from.read_volatile() }
}

/// # Safety
///
/// The byte at `to` is writable.
#[inline]
pub(super) unsafe fn store_1(to: *mut u8, value: u8) {
    // SAFETY: the byte at `to` is writable, by the caller.
    unsafe { to.write_volatile(value) }
}
