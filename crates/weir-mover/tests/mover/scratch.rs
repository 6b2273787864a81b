//! Where the trees of tests are.

/// A directory that is gone with the test: in memory, where there is any, for a scene syncs a hundred times, and
/// these tests are of the order of changes, not of storage.
pub fn temporary_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.expect("a directory for temporary files")
}
