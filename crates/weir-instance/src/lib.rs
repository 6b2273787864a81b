//! An instance of weir as it lies on one machine: its directories and the locks that say whether
//! its server lives, what a killed server left, the roster, and how a server is asked.
//!
//! | file | subject |
//! | --- | --- |
//! | `directories` | the directories of an instance, by its name |
//! | `lock` | locks that the kernel drops with their holder |
//! | `roster` | the files that say which servers an instance has |
//! | `mounts` | kernel mounts in those directories |
//! | `connection` | a connection to a server |
//! | `report` | the report of a server, and the sum of several |
//! | `size` | numbers of bytes, for people |
//! | `errln` | messages on standard error, which may fail |
//!
//! Left out: starting servers (`weir-launch`), and what is in the directories (`weir-server`).

#![forbid(unsafe_code)]

pub mod connection;
pub mod directories;
pub mod errln;
pub mod lock;
pub mod mounts;
pub mod report;
pub mod roster;
pub mod size;
