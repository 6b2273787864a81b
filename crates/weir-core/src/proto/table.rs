//! The tables of operations: each operation is declared once, and [`operations!`] and
//! [`peer_operations!`] make of it the message, its variant of `Request`, its counter's name, the
//! check of its asker, and its method in the trait that a server implements. A dispatch without
//! a wildcard follows, so that a server that lacks an operation does not compile.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use serde::de::DeserializeOwned;
use serde::Serialize;

use super::FsError;
use crate::types::ClientId;

/// The sender of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// A client process, through its channel.
    Client(ClientId),
    /// A control connection (`weir status` and its like).
    Control,
}

/// The callers that may ask for an operation, as the type of its method's first argument.
pub trait FromCaller: Sized {
    /// Refuses callers that may not ask (`NotPermitted`).
    fn admit(caller: Caller) -> Result<Self, FsError>;
}

impl FromCaller for Caller {
    fn admit(caller: Caller) -> Result<Caller, FsError> {
        Ok(caller)
    }
}

impl FromCaller for ClientId {
    fn admit(caller: Caller) -> Result<ClientId, FsError> {
        match caller {
            Caller::Client(id) => Ok(id),
            Caller::Control => Err(FsError::NotPermitted),
        }
    }
}

/// A control connection, for operations that no client may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control;

impl FromCaller for Control {
    fn admit(caller: Caller) -> Result<Control, FsError> {
        match caller {
            Caller::Control => Ok(Control),
            Caller::Client(_) => Err(FsError::NotPermitted),
        }
    }
}

/// An operation that a server was asked for: its result, or what has to wait first. Most need
/// nothing but the tables of the asked server, and cost no future.
pub enum Served<T> {
    /// It is done.
    Now(T),
    /// It waits for locks or other servers.
    Later(Pin<Box<dyn Future<Output = T>>>),
}

impl<T: 'static> Served<T> {
    /// An operation that may wait.
    pub fn later(work: impl Future<Output = T> + 'static) -> Served<T> {
        Served::Later(Box::pin(work))
    }

    /// An operation that runs at once as far as it can. It is polled once more by whoever gets it.
    pub fn run(work: impl Future<Output = T> + 'static) -> Served<T> {
        let mut work = Box::pin(work);
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Served::Now(result),
            Poll::Pending => Served::Later(work),
        }
    }

    /// The same with another result, made of this one.
    pub fn map<U: 'static>(self, make: impl FnOnce(T) -> U + 'static) -> Served<U> {
        match self {
            Served::Now(result) => Served::Now(make(result)),
            Served::Later(work) => Served::later(async move { make(work.await) }),
        }
    }
}

/// The object of an operation: it decides the errno of an inode that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationObject {
    /// A file that the program names or looks for: ENOENT, as if the program had come later.
    Named,
    /// A file that the program has open, which lives until it is closed: EIO.
    Open,
}

/// An operation: a message with its kind of reply.
pub trait Operation: Into<super::Request> {
    /// The reply to one that was done.
    type Reply: Serialize + DeserializeOwned;
    /// Its name, for counters and logs.
    const NAME: &'static str;
    /// Its object.
    const OBJECT: OperationObject;
}

/// Makes a message of each line, and the enumeration `Request` of all messages. Those in braces are declared in the table of clients.
macro_rules! messages {
    ({ $($client:ident)* } $(
        $(#[$meta:meta])*
        $name:ident { $( $(#[$field_meta:meta])* $field:ident: $type:ty ),* $(,)? }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
            pub struct $name { $( $(#[$field_meta])* pub $field: $type ),* }

            impl From<$name> for Request {
                fn from(op: $name) -> Request {
                    Request::$name(op)
                }
            }
        )*

        $(
            impl From<$client> for Request {
                fn from(op: $client) -> Request {
                    Request::$client(op)
                }
            }
        )*

        /// Any operation, as it travels.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum Request {
            $( #[doc = concat!("See [`", stringify!($client), "`].")] $client($client), )*
            $( #[doc = concat!("See [`", stringify!($name), "`].")] $name($name), )*
        }
    };
}

/// Makes a message an operation.
macro_rules! operation {
    ($name:ident, $method:ident, $object:ident, $reply:ty) => {
        impl Operation for $name {
            type Reply = $reply;
            const NAME: &'static str = stringify!($method);
            const OBJECT: OperationObject = OperationObject::$object;
        }
    };
}

/// The operations that clients and tools ask for. A line is
///
/// ```text
/// /// Documentation.
/// method(asker, object): Message { fields } -> Reply;
/// ```
///
/// Those under `local` concern the tables of the asked server alone; those under `home` are handed
/// on, as they are, to the home of their `ino`; those under `shared` may concern several servers.
macro_rules! operations {
    (
        local { $(
            $(#[$local_meta:meta])*
            $local_method:ident($local_asker:ty, $local_object:ident): $local_name:ident {
                $( $(#[$local_field_meta:meta])* $local_field:ident: $local_type:ty ),* $(,)?
            } -> $local_reply:ty;
        )* }
        home { $(
            $(#[$home_meta:meta])*
            $home_method:ident($home_asker:ty, $home_object:ident): $home_name:ident {
                $( $(#[$home_field_meta:meta])* $home_field:ident: $home_type:ty ),* $(,)?
            } -> $home_reply:ty;
        )* }
        shared { $(
            $(#[$meta:meta])*
            $method:ident($asker:ty, $object:ident): $name:ident {
                $( $(#[$field_meta:meta])* $field:ident: $type:ty ),* $(,)?
            } -> $reply:ty;
        )* }
    ) => {
        messages! {
            {}
            $( $(#[$local_meta])* $local_name {
                $( $(#[$local_field_meta])* $local_field: $local_type ),*
            } )*
            $( $(#[$home_meta])* $home_name {
                $( $(#[$home_field_meta])* $home_field: $home_type ),*
            } )*
            $( $(#[$meta])* $name { $( $(#[$field_meta])* $field: $type ),* } )*
        }

        $( operation!($local_name, $local_method, $local_object, $local_reply); )*
        $( operation!($home_name, $home_method, $home_object, $home_reply); )*
        $( operation!($name, $method, $object, $reply); )*

        /// The messages and replies of clients, for the test that their version is raised with them.
        #[cfg(test)]
        const DECLARATIONS: &str = stringify!(
            $( $local_name { $( $local_field: $local_type ),* } -> $local_reply; )*
            $( $home_name { $( $home_field: $home_type ),* } -> $home_reply; )*
            $( $name { $( $field: $type ),* } -> $reply; )*
        );

        impl Request {
            /// The operation's name, for counting.
            pub fn name(&self) -> &'static str {
                match self {
                    $( Request::$local_name(_) => <$local_name as Operation>::NAME, )*
                    $( Request::$home_name(_) => <$home_name as Operation>::NAME, )*
                    $( Request::$name(_) => <$name as Operation>::NAME, )*
                }
            }
        }

        /// The operations that a server does by its own tables, at once.
        pub trait LocalOperations {
            $(
                $(#[$local_meta])*
                fn $local_method(&mut self, from: $local_asker, op: $local_name)
                    -> Result<$local_reply, FsError>;
            )*
        }

        /// All operations: these, and those of the server's tables.
        pub trait Operations {
            /// The server's tables.
            type Local: LocalOperations;

            /// Returns the server's tables.
            fn local<R>(&self, act: impl FnOnce(&mut Self::Local) -> R) -> R;

            /// Has the home of the inode, which may be this server, do an operation.
            fn ask_home<O: peer::HomeOperation + 'static>(&self, op: O)
                -> Served<Result<<O as peer::PeerOperation>::Reply, FsError>>;

            $(
                $(#[$meta])*
                fn $method(&self, from: $asker, op: $name) -> Served<Result<$reply, FsError>>;
            )*
        }

        /// Does an operation, if the caller may ask for it; gives the encoded reply, in the empty
        /// buffer `out` if that is at once.
        pub fn perform<O: Operations>(
            server: &O,
            caller: Caller,
            request: Request,
            out: Vec<u8>,
        ) -> Served<Vec<u8>> {
            match request {
                $( Request::$local_name(op) => Served::Now(encoded_in(
                    out,
                    &match <$local_asker>::admit(caller) {
                        Ok(from) => server.local(|local| local.$local_method(from, op)),
                        Err(error) => Err(error),
                    },
                )), )*
                $( Request::$home_name(op) => match <$home_asker>::admit(caller) {
                    Ok(_) => server.ask_home(op).map(|result| encoded_in(out, &result)),
                    Err(error) => Served::Now(refusal(error)),
                }, )*
                $( Request::$name(op) => match <$asker>::admit(caller) {
                    Ok(from) => {
                        let served = server.$method(from, op);
                        served.map(|result| encoded_in(out, &result))
                    }
                    Err(error) => Served::Now(refusal(error)),
                }, )*
            }
        }
    };
}

/// The operations between servers. A line is
///
/// ```text
/// /// Documentation.
/// method [at home of field]: Message { fields } -> Reply;
/// ```
///
/// A request at the home of an inode is refused by any other server. Those under `home` are declared
/// in the table of clients, and travel to the home of their `ino` as they are.
macro_rules! peer_operations {
    (home { $( $home_method:ident: $home_name:ident, )* } $(
        $(#[$meta:meta])*
        $method:ident $(at home of $key:ident)?: $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty ),* $(,)?
        } -> $reply:ty;
    )*) => {
        messages! {
            { $($home_name)* }
            $( $(#[$meta])* $name { $( $(#[$field_meta])* $field: $type ),* } )*
        }

        $(
            impl PeerOperation for $home_name {
                type Reply = <$home_name as Operation>::Reply;
                const NAME: &'static str = stringify!($home_method);

                async fn perform<H: Handler>(
                    self,
                    handler: &H,
                    from: Rank,
                ) -> Result<<$home_name as Operation>::Reply, FsError> {
                    if self.ino.rank() != handler.rank() {
                        return Err(FsError::Malformed);
                    }
                    handler.count(<Self as PeerOperation>::NAME);
                    handler.$home_method(from, self).await
                }
            }

            impl HomeOperation for $home_name {
                fn inode(&mut self) -> &mut Ino {
                    &mut self.ino
                }
            }
        )*
        $(
            impl PeerOperation for $name {
                type Reply = $reply;
                const NAME: &'static str = stringify!($method);

                async fn perform<H: Handler>(
                    self,
                    handler: &H,
                    from: Rank,
                ) -> Result<$reply, FsError> {
                    $( if self.$key.rank() != handler.rank() {
                        return Err(FsError::Malformed);
                    } )?
                    handler.count(Self::NAME);
                    handler.$method(from, self).await
                }
            }
        )*

        /// The part of a server that does them.
        #[allow(async_fn_in_trait)] // one thread: futures need not be Send
        pub trait Handler {
            /// The server's rank.
            fn rank(&self) -> Rank;

            /// Counts one more of an operation.
            fn count(&self, name: &'static str);

            $(
                #[doc = concat!("See [`super::", stringify!($home_name), "`].")]
                async fn $home_method(&self, from: Rank, op: $home_name)
                    -> Result<<$home_name as Operation>::Reply, FsError>;
            )*
            $( $(#[$meta])* async fn $method(&self, from: Rank, op: $name) -> Result<$reply, FsError>; )*
        }

        /// Decodes a request, has it done, and encodes the reply.
        pub async fn dispatch<H: Handler>(handler: &H, from: Rank, bytes: &[u8]) -> Vec<u8> {
            match postcard::from_bytes::<Request>(bytes) {
                $( Ok(Request::$home_name(op)) => encoded(&op.perform(handler, from).await), )*
                $( Ok(Request::$name(op)) => encoded(&op.perform(handler, from).await), )*
                Err(_) => encoded(&Err::<(), _>(FsError::Malformed)),
            }
        }
    };
}

pub(super) use {messages, operation, operations, peer_operations};
