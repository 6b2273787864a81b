//! The machine that the numbers are of.

use std::fs;

use serde::Serialize;

/// The facts that a reader of a report asks for first.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor, as the kernel names it.
    pub cpu: String,
    /// Logical processors that this process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Transparent huge pages of shared memory, as the kernel shows the setting.
    pub shmem_huge_pages: String,
}

impl Machine {
    /// Describes this machine; empty where the kernel does not say.
    pub fn of_here() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu = field(&text("/proc/cpuinfo"), "model name");
        let memory = field(&text("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            cpu,
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: kib << 10,
            shmem_huge_pages: text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
                .trim()
                .to_owned(),
        }
    }
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> String {
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_default();
    line.split_once(':')
        .map_or("", |(_, value)| value.trim())
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_a_kernel() {
        let here = Machine::of_here();
        assert!(
            here.memory_bytes > 0 && here.cpus > 0 && !here.kernel.is_empty(),
            "{here:?}"
        );
    }
}
