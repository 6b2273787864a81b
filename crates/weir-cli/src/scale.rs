//! `weir simulate-scale`: the requests that an instance of many nodes makes, from the model of
//! `weir-scale`.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;
use weir_config::Size;
use weir_scale::table::table;
use weir_scale::{predict, Job, Layout, Prediction};

/// How processes share files.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    /// One file, a block for each process.
    Segmented,
    /// One file, processes take turns.
    Strided,
    /// A file for each process.
    Private,
}

/// The options of `weir simulate-scale`.
#[derive(Args, Debug)]
pub struct ScaleArgs {
    /// Numbers of nodes, 1 to 10000.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,512,1024,4096,10000"
    )]
    nodes: Vec<u16>,
    /// Processes on each node.
    #[arg(long, value_name = "N", default_value_t = 4)]
    processes: u32,
    /// Bytes that each process writes and reads.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    bytes: u64,
    /// In calls of so many bytes.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size)]
    transfer: u64,
    /// How processes share files.
    #[arg(long, value_enum, default_value = "segmented")]
    layout: Shape,
    /// For programs.
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    Size::parse(text)
        .map(|size| size.0)
        .map_err(|bad| bad.reason)
}

/// `weir simulate-scale`.
pub fn run(args: &ScaleArgs) -> Result<()> {
    let mut all: Vec<Prediction> = Vec::new();
    for nodes in &args.nodes {
        let job = Job {
            nodes: *nodes,
            processes: args.processes,
            bytes: args.bytes,
            transfer: args.transfer,
            layout: match args.layout {
                Shape::Segmented => Layout::Segmented,
                Shape::Strided => Layout::Strided,
                Shape::Private => Layout::Private,
            },
        };
        job.check()?;
        all.push(predict(&job));
    }
    if args.json {
        outln!("{:#}", json!({ "predictions": all }));
    } else {
        out!("{}", table(&all));
    }
    Ok(())
}
