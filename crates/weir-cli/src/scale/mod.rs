//! `weir simulate-scale`: what an instance of many nodes would do, from the model of
//! `weir-scale` and costs measured here ([`measure`]).

mod measure;

use anyhow::{anyhow, Context, Result};
use clap::{Args, ValueEnum};
use serde_json::json;
use weir_config::Size;
use weir_scale::{predict, table, Costs, Job, Layout, Machines, Prediction};

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

/// Of `weir simulate-scale`.
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
    /// What each process writes and reads.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    bytes: u64,
    /// In calls of so many bytes.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size)]
    transfer: u64,
    /// How processes share files.
    #[arg(long, value_enum, default_value = "segmented")]
    layout: Shape,
    /// The link of a node, bytes a second each way (default: that of the costs).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    link: Option<u64>,
    /// All servers on one machine with so many cores, over its loopback.
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Costs of steps, as --measure prints them (default: those of docs/SPECIFICATION.md).
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    costs: Option<std::path::PathBuf>,
    /// Measure costs on this machine, print them, and do nothing else.
    #[arg(long)]
    measure: bool,
    /// For programs.
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    Size::parse(text)
        .map(|size| size.0)
        .map_err(|bad| bad.reason)
}

/// Does it.
pub fn run(args: &ScaleArgs) -> Result<()> {
    if args.measure {
        let costs = measure::costs()?;
        out!("{}", to_toml(&costs)?);
        return Ok(());
    }
    let costs = costs_of(args)?;
    let machines = match args.cores {
        Some(cores) => Machines::One { cores },
        None => Machines::Each,
    };
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
        all.push(predict(&job, machines, &costs));
    }
    if args.json {
        outln!("{:#}", json!({ "costs": costs, "predictions": all }));
    } else {
        out!("{}\n{}", table::rates(&all, &costs), table::loads(&all));
        out!("\n{}", table::telling(&all));
    }
    Ok(())
}

fn costs_of(args: &ScaleArgs) -> Result<Costs> {
    let mut costs = match &args.costs {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            toml::from_str(&text).with_context(|| path.display().to_string())?
        }
        None => Costs::default(),
    };
    if let Some(link) = args.link {
        // Links are below 2^53 bytes/s.
        #[allow(clippy::cast_precision_loss)]
        let link = link as f64;
        costs.link_bytes_per_s = link;
    }
    costs
        .check()
        .map_err(|name| anyhow!("{name} is no cost: a number above 0 is asked for"))?;
    Ok(costs)
}

fn to_toml(costs: &Costs) -> Result<String> {
    toml::to_string(costs).context("costs as TOML")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_survive_their_file_and_unknown_ones_are_refused() {
        let costs = Costs::default();
        let text = to_toml(&costs).unwrap();
        assert_eq!(toml::from_str::<Costs>(&text).unwrap(), costs);
        assert!(toml::from_str::<Costs>("warp = 9").is_err());
    }
}
