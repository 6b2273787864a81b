//! A program in plain code as a task: while it waits for a future, other tasks run.
//!
//! The client library is written for processes that block. A fiber has a stack of its own, so that this
//! code runs here unchanged, as one of many fibers in one thread.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{pin, Pin};
use std::task::{Context, Poll, Waker};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Enough for the data path, whose arrays of pieces lie on the stack.
const STACK_BYTES: usize = 256 << 10;

/// The handle with which a program waits.
pub struct Waiter<'f> {
    yielder: &'f Yielder<Waker, ()>,
    waker: RefCell<Waker>,
}

impl Waiter<'_> {
    /// Waits for a future.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            let waker = self.waker.borrow().clone();
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            let waker = self.yielder.suspend(());
            self.waker.replace(waker);
        }
    }
}

/// A running program as a future. If it is dropped while it waits, it is unwound.
pub struct Fiber(Coroutine<Waker, (), (), DefaultStack>);

impl Fiber {
    /// A program, which starts at its first poll.
    pub fn new(program: impl FnOnce(&Waiter<'_>) + 'static) -> Fiber {
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
        Fiber(Coroutine::with_stack(stack, move |yielder, waker| {
            program(&Waiter {
                yielder,
                waker: RefCell::new(waker),
            });
        }))
    }
}

impl Future for Fiber {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.0.resume(context.waker().clone()) {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(()) => Poll::Ready(()),
        }
    }
}
