//! The guarantees when servers, nodes and the network fail, and when there are many of everything: real
//! servers and programs in namespaces, real faults. Skipped, with a message, without root.
//!
//! | file | subject |
//! | --- | --- |
//! | `room` | an instance on a test cluster, and how to hurt it |
//! | `probes` | processes that make one kind of call all the time |
//! | `talk` | a program that is asked and answers by lines |
//! | `local` | an instance of this machine alone |
//! | `kill` | servers and nodes that are killed, stay away, or stop answering |
//! | `blocked` | processes that wait in a call when their server is killed |
//! | `partition` | a network that is cut and heals |
//! | `stale` | an own server that says nothing |
//! | `threads` | threads of one process, of which some wait for a server |
//! | `full` | a tmpfs that others fill to the last page |
//! | `many` | 64 servers, 1,000 clients, few descriptors |
//! | `hostile` | strangers at the sockets and at the fabric |

mod blocked;
mod full;
mod hostile;
mod kill;
mod local;
mod many;
mod partition;
mod probes;
mod room;
mod stale;
mod talk;
mod threads;
