//! A mover on another node, which is lost after some orders.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_mover::list::move_files;
use weir_mover::mover::{FileMover, FileToMove, MovedFiles, NameOutcome, PieceFailure};
use weir_mover::piece::{copy_piece, FilePiece, PieceOptions};
use weir_mover::prepared::{PreparedFiles, PreparedLists};
use weir_mover::tree::FileTree;
use weir_mover::{DirectoryTree, StageOptions, StageProgress};

/// A tree that lives as long as the test: the lists that a mover has prepared are of it.
pub fn leak<T: FileTree>(tree: T) -> &'static T {
    Box::leak(Box::new(tree))
}

/// A mover in this process.
#[derive(Debug)]
pub struct OtherNode<S: FileTree + 'static, T: FileTree + 'static = DirectoryTree> {
    pub rank: u16,
    pub from: &'static S,
    pub to: &'static T,
    pub options: StageOptions,
    /// The lists and pieces until it is lost.
    pub orders_left: AtomicUsize,
    /// It does its last order, and nobody hears of it.
    pub dies_unheard: bool,
    pub orders_done: Arc<AtomicUsize>,
    pub prepared: Mutex<PreparedLists<'static, S, T>>,
}

impl<S: FileTree> OtherNode<S> {
    /// It has rank 1.
    pub fn new(from: S, orders: usize, options: StageOptions) -> OtherNode<S> {
        OtherNode::with_target(from, &DirectoryTree, orders, options)
    }
}

impl<S: FileTree, T: FileTree> OtherNode<S, T> {
    /// The same with this target.
    pub fn with_target(
        from: S,
        to: &'static T,
        orders: usize,
        options: StageOptions,
    ) -> OtherNode<S, T> {
        OtherNode {
            rank: 1,
            from: leak(from),
            to,
            options,
            orders_left: AtomicUsize::new(orders),
            dies_unheard: false,
            orders_done: Arc::default(),
            prepared: Mutex::default(),
        }
    }

    /// Does an order, if it is not lost before or during it.
    fn obey<R>(&self, act: impl FnOnce(&StageProgress) -> R) -> io::Result<R> {
        let lost = || {
            *self.prepared.lock().unwrap() = PreparedLists::default();
            io::Error::from(io::ErrorKind::UnexpectedEof)
        };
        let left = self.orders_left.load(Ordering::Relaxed);
        self.orders_left
            .store(left.checked_sub(1).ok_or_else(lost)?, Ordering::Relaxed);
        let done = act(&StageProgress::default());
        if left == 1 && self.dies_unheard {
            return Err(lost());
        }
        self.orders_done.fetch_add(1, Ordering::Relaxed);
        Ok(done)
    }
}

impl<S: FileTree, T: FileTree> FileMover for OtherNode<S, T> {
    fn rank(&self) -> u16 {
        self.rank
    }

    fn move_files(&self, files: &[FileToMove]) -> io::Result<MovedFiles> {
        self.obey(|progress| move_files(self.from, self.to, files, self.options, progress))
    }

    fn prepare_files(&self, list: u32, files: &[FileToMove]) -> io::Result<()> {
        self.obey(|progress| {
            let files = files.to_vec();
            let files = PreparedFiles::new(self.from, self.to, files, self.options);
            files.copy(progress);
            self.prepared.lock().unwrap().add(list, files);
        })
    }

    fn name_file(&self, list: u32, file: usize) -> io::Result<NameOutcome> {
        self.obey(|progress| self.prepared.lock().unwrap().name(list, file, progress))?
    }

    fn finish_files(&self, list: u32) -> io::Result<MovedFiles> {
        self.obey(|_| self.prepared.lock().unwrap().finish(list))?
    }

    fn move_piece(&self, piece: &FilePiece) -> io::Result<Result<(), PieceFailure>> {
        let options = PieceOptions {
            threads: 2,
            verify: self.options.verify,
        };
        let copied =
            self.obey(|progress| copy_piece(self.from, self.to, piece, options, progress))?;
        Ok(copied.map_err(|error| PieceFailure::from(&error)))
    }
}
