//! Checks the layouts of `abi` against the headers, by a C program with static assertions. Without
//! a C compiler or libfabric's headers the test says so and checks nothing.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use super::abi;

/// Assertions for one structure: its fields' offsets, and its size if weir allocates it.
macro_rules! assertions {
    ($out:ident: $($c:literal = $rust:ident { $($c_field:literal = $field:ident),+ } $($whole:ident)?;)+) => {$(
        $(
            writeln!(
                $out,
                "_Static_assert(offsetof(struct {}, {}) == {}, \"{}.{}\");",
                $c, $c_field, offset_of!(abi::$rust, $field), $c, $c_field
            ).unwrap();
        )+
        $(
            let $whole = size_of::<abi::$rust>();
            writeln!($out, "_Static_assert(sizeof(struct {}) == {}, \"{}\");", $c, $whole, $c).unwrap();
        )?
    )+};
}

fn layouts() -> String {
    let mut out = String::new();
    assertions! { out:
        "fid" = Fid { "fclass" = fclass, "context" = context, "ops" = ops } whole;
        "fi_ops" = Ops { "size" = size, "close" = close, "bind" = bind, "control" = control };
        "fi_info" = Info {
            "next" = next, "caps" = caps, "mode" = mode, "addr_format" = addr_format,
            "src_addrlen" = src_addrlen, "dest_addrlen" = dest_addrlen, "src_addr" = src_addr,
            "dest_addr" = dest_addr, "handle" = handle, "tx_attr" = tx_attr, "rx_attr" = rx_attr,
            "ep_attr" = ep_attr, "domain_attr" = domain_attr, "fabric_attr" = fabric_attr,
            "nic" = nic
        } whole;
        "fi_ep_attr" = EpAttr {
            "type" = kind, "protocol" = protocol, "protocol_version" = protocol_version,
            "max_msg_size" = max_msg_size
        };
        "fi_domain_attr" = DomainAttr {
            "domain" = domain, "name" = name, "threading" = threading,
            "control_progress" = control_progress, "data_progress" = data_progress,
            "resource_mgmt" = resource_mgmt, "av_type" = av_type, "mr_mode" = mr_mode,
            "mr_key_size" = mr_key_size
        };
        "fi_fabric_attr" = FabricAttr {
            "fabric" = fabric, "name" = name, "prov_name" = prov_name,
            "prov_version" = prov_version, "api_version" = api_version
        };
        "fid_fabric" = Fabric { "fid" = fid, "ops" = ops };
        "fi_ops_fabric" = OpsFabric { "size" = size, "domain" = domain, "trywait" = trywait };
        "fid_domain" = Domain { "fid" = fid, "ops" = ops, "mr" = mr };
        "fi_ops_domain" = OpsDomain {
            "size" = size, "av_open" = av_open, "cq_open" = cq_open, "endpoint" = endpoint
        };
        "fi_ops_mr" = OpsMr { "size" = size, "reg" = reg };
        "fid_mr" = Mr { "fid" = fid, "mem_desc" = mem_desc, "key" = key };
        "fi_av_attr" = AvAttr {
            "type" = kind, "rx_ctx_bits" = rx_ctx_bits, "count" = count,
            "ep_per_node" = ep_per_node, "name" = name, "map_addr" = map_addr, "flags" = flags
        } whole;
        "fid_av" = Av { "fid" = fid, "ops" = ops };
        "fi_ops_av" = OpsAv { "size" = size, "insert" = insert };
        "fi_cq_attr" = CqAttr {
            "size" = size, "flags" = flags, "format" = format, "wait_obj" = wait_obj,
            "signaling_vector" = signaling_vector, "wait_cond" = wait_cond, "wait_set" = wait_set
        } whole;
        "fid_cq" = Cq { "fid" = fid, "ops" = ops };
        "fi_ops_cq" = OpsCq { "size" = size, "read" = read, "readerr" = readerr };
        "fi_cq_msg_entry" = CqMsgEntry {
            "op_context" = op_context, "flags" = flags, "len" = len
        } whole;
        "fi_cq_err_entry" = CqErrEntry {
            "op_context" = op_context, "flags" = flags, "len" = len, "buf" = buf, "data" = data,
            "tag" = tag, "olen" = olen, "err" = err, "prov_errno" = prov_errno,
            "err_data" = err_data, "err_data_size" = err_data_size
        };
        "fid_ep" = Ep { "fid" = fid, "ops" = ops, "cm" = cm, "msg" = msg, "rma" = rma };
        "fi_ops_cm" = OpsCm { "size" = size, "getname" = getname };
        "fi_ops_msg" = OpsMsg { "size" = size, "recv" = recv, "send" = send };
        "fi_ops_rma" = OpsRma { "size" = size, "read" = read };
        "fi_context2" = Context2 { "internal" = internal } whole;
    }
    constants(&mut out);
    out
}

fn constants(out: &mut String) {
    // readerr writes at most the entry of the requested version.
    let entry = size_of::<abi::CqErrEntry>();
    writeln!(
        out,
        "_Static_assert(sizeof(struct fi_cq_err_entry) <= {entry}, \"err\");"
    )
    .unwrap();
    for (name, value) in [
        ("FI_MSG", abi::MSG),
        ("FI_RMA", abi::RMA),
        ("FI_READ", abi::READ),
        ("FI_RECV", abi::RECV),
        ("FI_SEND", abi::SEND),
        ("FI_REMOTE_READ", abi::REMOTE_READ),
        ("FI_SOURCE", abi::SOURCE),
        ("FI_CONTEXT", abi::CONTEXT),
        ("FI_CONTEXT2", abi::CONTEXT2),
        ("FI_ADDR_UNSPEC", abi::ADDR_UNSPEC),
    ] {
        writeln!(out, "_Static_assert({name} == {value}ULL, \"{name}\");").unwrap();
    }
    for (name, value) in [
        ("FI_MR_LOCAL", abi::MR_LOCAL),
        ("FI_MR_VIRT_ADDR", abi::MR_VIRT_ADDR),
        ("FI_MR_ALLOCATED", abi::MR_ALLOCATED),
        ("FI_MR_PROV_KEY", abi::MR_PROV_KEY),
        ("FI_MR_ENDPOINT", abi::MR_ENDPOINT),
        ("FI_EP_RDM", abi::EP_RDM),
        ("FI_THREAD_DOMAIN", abi::THREAD_DOMAIN),
        ("FI_PROGRESS_MANUAL", abi::PROGRESS_MANUAL),
        ("FI_RM_ENABLED", abi::RM_ENABLED),
        ("FI_AV_TABLE", abi::AV_TABLE),
        ("FI_CQ_FORMAT_MSG", abi::CQ_FORMAT_MSG),
        ("FI_WAIT_FD", abi::WAIT_FD),
        ("FI_GETWAIT", abi::GETWAIT),
        ("FI_ENABLE", abi::ENABLE),
        ("FI_ENODATA", abi::ENODATA),
    ] {
        writeln!(out, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    for (name, value) in [("FI_EAGAIN", abi::EAGAIN), ("FI_EAVAIL", abi::EAVAIL)] {
        writeln!(out, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
}

/// Compiles a program that includes the headers; returns the compiler's messages.
fn compile(name: &str, assertions: &str) -> Result<(), String> {
    let headers = [
        "fabric",
        "fi_domain",
        "fi_endpoint",
        "fi_cm",
        "fi_rma",
        "fi_eq",
        "fi_errno",
    ];
    let mut source = "#include <stddef.h>\n".to_owned();
    for header in headers {
        writeln!(source, "#include <rdma/{header}.h>").unwrap();
    }
    source += assertions;
    let file = std::env::temp_dir().join(format!("weir-{name}-{}.c", std::process::id()));
    std::fs::write(&file, source).unwrap();
    let compiler = Command::new("cc")
        .args(["-fsyntax-only", "-w"])
        .arg(&file)
        .output();
    std::fs::remove_file(&file).unwrap();
    match compiler {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn the_layouts_are_those_of_the_headers() {
    if let Err(why) = compile("headers", "") {
        let lacks = format!("a C compiler and libfabric's headers (libfabric-dev): {why}");
        weir_cluster::skip("the layout of libfabric's structures", &lacks);
        return;
    }
    assert_eq!(compile("layouts", &layouts()), Ok(()));
    let wrong = "_Static_assert(offsetof(struct fi_info, nic) == 0, \"nic\");\n";
    assert!(compile("wrong", wrong).is_err(), "it can fail");
}
