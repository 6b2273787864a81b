//! Elements of a variable, from a log.

use std::io;

use weir_arrays::element::ElementType;
use weir_arrays::subarray::{Range, Subarray};

use crate::found::ArrayLog;

/// The elements of a part of a variable.
#[derive(Clone, PartialEq, Debug)]
pub struct LoggedValues {
    /// The part.
    pub part: Subarray,
    /// The type of its elements.
    pub element: ElementType,
    /// The elements in external form, one after the other; the fill value where the log has no element.
    pub external: Vec<u8>,
    /// For each element: true if the log has it.
    pub is_logged: Vec<bool>,
}

/// Reads a variable, up to the last record that the log has. `None`: the log knows no such variable.
///
/// # Errors
///
/// Errors of the log's files. `OutOfMemory`: the variable is too large for memory.
pub fn read_values(log: &ArrayLog, variable: &str) -> io::Result<Option<LoggedValues>> {
    let found = log.definitions().and_then(|definitions| {
        let mut variables = definitions.variables.iter().enumerate();
        let (number, found) = variables.find(|(_, found)| found.name == variable)?;
        Some((definitions, u32::try_from(number).ok()?, found))
    });
    let Some((definitions, number, found)) = found else {
        return Ok(None);
    };
    let entries = log
        .entries()
        .into_iter()
        .filter(|(_, entry)| entry.variable == number);
    let entries: Vec<_> = entries.collect();
    let records = entries
        .iter()
        .map(|(_, entry)| entry.end_record(definitions))
        .max();
    let lengths = found.shape.iter().enumerate().map(|(dimension, length)| {
        match dimension == 0 && found.is_record {
            true => Range::new(0, records.unwrap_or(0)),
            false => Range::new(0, *length),
        }
    });
    let part = Subarray(lengths.collect());
    let bytes = found.external.bytes();
    let too_large = || {
        io::Error::new(
            io::ErrorKind::OutOfMemory,
            "the variable is too large for memory",
        )
    };
    let elements = part
        .elements()
        .and_then(|elements| usize::try_from(elements).ok())
        .ok_or_else(too_large)?;
    let mut values = LoggedValues {
        element: found.external,
        external: Vec::new(),
        is_logged: Vec::new(),
        part,
    };
    let wanted = elements.checked_mul(bytes).ok_or_else(too_large)?;
    values
        .external
        .try_reserve_exact(wanted)
        .map_err(|_| too_large())?;
    values
        .is_logged
        .try_reserve_exact(elements)
        .map_err(|_| too_large())?;
    values.is_logged.resize(elements, false);
    while values.external.len() < wanted {
        values
            .external
            .extend(&found.fill[..bytes.min(found.fill.len())]);
        values
            .external
            .resize(values.external.len().next_multiple_of(bytes), 0);
    }
    for (writer, entry) in entries {
        let Some(conversion) = entry.conversion(definitions) else {
            continue;
        };
        let mut result = Ok(());
        entry.part.for_common_runs(&values.part, |run| {
            let (count, at) = (
                usize::try_from(run.count).expect("checked"),
                usize::try_from(run.first[1]).expect("checked"),
            );
            let mut native = vec![0; count * entry.memory.bytes()];
            let offset = entry.data + run.first[0] * entry.memory.bytes() as u64;
            if let Err(error) = writer.read_elements(offset, &mut native) {
                result = Err(error);
                return;
            }
            let mut external = Vec::new();
            conversion.to_external(&native, &found.fill, &mut external);
            values.external[at * bytes..(at + count) * bytes].copy_from_slice(&external);
            values.is_logged[at..at + count].fill(true);
        });
        result?;
    }
    Ok(Some(values))
}
