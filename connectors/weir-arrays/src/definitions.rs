//! The variables of a file: their shapes, types and offsets.

use serde::{Deserialize, Serialize};

use crate::element::ElementType;
use crate::subarray::{advance, Subarray};
use crate::waves::FileSpan;

/// The definitions of a file of netCDF's classic formats.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileDefinitions {
    /// True for CDF-5 (`NC_64BIT_DATA`).
    pub is_cdf5: bool,
    /// Bytes from a record to the next one (`recsize`).
    pub record_bytes: u64,
    /// The variables, indexed by their numbers (`varid`).
    pub variables: Vec<Variable>,
}

/// A variable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The type of its elements in the file.
    pub external: ElementType,
    /// The lengths of its dimensions; the length of the record dimension is ignored.
    pub shape: Vec<u64>,
    /// True if its first dimension is the record dimension.
    pub is_record: bool,
    /// Where its first element lies in the file, bytes.
    pub begin: u64,
    /// Its fill value, external.
    pub fill: Vec<u8>,
}

/// Elements of a part that lie one after the other in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileRun {
    /// The offset of the first one in the file, bytes.
    pub offset: u64,
    /// The position of the first one in the part.
    pub first: u64,
    /// The number of elements.
    pub count: u64,
}

impl Variable {
    /// The bytes of the file from the first to the last element of a part, which must lie within the variable. If an offset
    /// overflows: all bytes.
    pub fn span(&self, record_bytes: u64, part: &Subarray) -> FileSpan {
        if part.elements() == Some(0) {
            return FileSpan::EMPTY;
        }
        let bytes = self.external.bytes() as u64;
        let mut step = bytes;
        let (mut first, mut last) = (Some(self.begin), Some(self.begin));
        for (dimension, range) in part.0.iter().enumerate().rev() {
            if self.is_record && dimension == 0 {
                step = record_bytes;
            }
            let add = |place: Option<u64>, index: u64| place?.checked_add(index.checked_mul(step)?);
            first = add(first, range.start);
            last = range.end_index().and_then(|end| add(last, end - 1));
            step = step.saturating_mul(self.shape[dimension]);
        }
        let end = last.and_then(|last| last.checked_add(bytes));
        match (first, end) {
            (Some(first), Some(end)) => FileSpan { first, end },
            _ => FileSpan::ALL,
        }
    }

    /// Visits the runs of a part in the order of its elements. The part must lie within the variable. `None`, with nothing visited:
    /// an offset overflows.
    pub fn for_file_runs(
        &self,
        record_bytes: u64,
        part: &Subarray,
        mut visit: impl FnMut(FileRun),
    ) -> Option<()> {
        if part.elements()? == 0 {
            return Some(());
        }
        let bytes = self.external.bytes() as u64;
        let mut steps = vec![bytes; self.shape.len()];
        for dimension in (1..steps.len()).rev() {
            steps[dimension - 1] = steps[dimension].saturating_mul(self.shape[dimension]);
        }
        if let (true, Some(first)) = (self.is_record, steps.first_mut()) {
            *first = record_bytes;
        }
        // No offset is greater than that of the last element.
        let mut last = self.begin;
        for (range, step) in part.0.iter().zip(&steps) {
            let index = range.end_index()?.checked_sub(1)?;
            last = last.checked_add(index.checked_mul(*step)?)?;
        }
        last.checked_add(bytes)?;
        // The dimensions along which neighbours in the part are neighbours in the file: the last one, and those before it while the
        // part has whole rows.
        let (mut split, mut count, mut contiguous) = (part.0.len(), 1, bytes);
        while let Some(dimension) = split.checked_sub(1) {
            let range = part.0[dimension];
            if steps[dimension] != contiguous || range.stride != 1 && range.count != 1 {
                break;
            }
            (count, contiguous) = (count * range.count, contiguous * range.count);
            split = dimension;
        }
        let first = part.0.iter().zip(&steps);
        let begin: u64 = self.begin + first.map(|(range, step)| range.start * step).sum::<u64>();
        let outer = &part.0[..split];
        let mut at = vec![0_u64; split];
        let mut position = 0;
        loop {
            let moved = at.iter().zip(outer).zip(&steps);
            let moved: u64 = moved
                .map(|((at, range), step)| at * range.stride * step)
                .sum();
            visit(FileRun {
                offset: begin + moved,
                first: position,
                count,
            });
            position += count;
            if !advance(&mut at, |dimension| outer[dimension].count) {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subarray::Range;

    fn variable(shape: &[u64], is_record: bool) -> Variable {
        Variable {
            name: "v".into(),
            external: ElementType::I32,
            shape: shape.to_vec(),
            is_record,
            begin: 100,
            fill: Vec::new(),
        }
    }

    fn runs(variable: &Variable, ranges: &[Range]) -> Vec<[u64; 3]> {
        let mut found = Vec::new();
        let part = Subarray(ranges.into());
        let note = |run: FileRun| found.push([run.offset, run.first, run.count]);
        variable.for_file_runs(1000, &part, note).unwrap();
        let span = variable.span(1000, &part);
        let first = found.iter().map(|run| run[0]).min();
        let end = found.iter().map(|run| run[0] + run[2] * 4).max();
        assert_eq!(first.is_none(), span.is_empty());
        assert!(first.is_none_or(|first| span.first == first && Some(span.end) == end));
        found
    }

    #[test]
    fn whole_rows_are_one_run() {
        let fixed = variable(&[4, 8], false);
        assert_eq!(
            runs(&fixed, &[Range::new(1, 2), Range::new(0, 8)]),
            [[132, 0, 16]]
        );
        assert_eq!(
            runs(&fixed, &[Range::new(1, 2), Range::new(2, 3)]),
            [[140, 0, 3], [172, 3, 3]]
        );
        assert_eq!(
            runs(&fixed, &[Range::new(1, 0), Range::new(2, 3)]),
            [[0; 3]; 0]
        );
    }

    #[test]
    fn records_are_apart() {
        let records = variable(&[0, 8], true);
        assert_eq!(
            runs(&records, &[Range::new(2, 2), Range::new(0, 8)]),
            [[2100, 0, 8], [3100, 8, 8]]
        );
        // A file with one record variable has its records one after the other.
        let alone = variable(&[0], true);
        assert_eq!(
            runs(&alone, &[Range::new(2, 2)]),
            [[2100, 0, 1], [3100, 1, 1]]
        );
    }

    #[test]
    fn places_that_are_too_large_are_none() {
        let vast = variable(&[4, 1 << 40, 1 << 40], false);
        let at = |index| Subarray([index, 0, 0].map(|index| Range::new(index, 1)).into());
        assert_eq!(vast.for_file_runs(0, &at(1), |_| panic!("no run")), None);
        assert_eq!(vast.span(0, &at(1)), FileSpan::ALL);
        let mut runs = 0;
        assert_eq!(vast.for_file_runs(0, &at(0), |_| runs += 1), Some(()));
        assert_eq!(runs, 1);
    }

    #[test]
    fn strides_are_single_elements() {
        let fixed = variable(&[16], false);
        let every_fifth = Range {
            start: 1,
            count: 3,
            stride: 5,
        };
        assert_eq!(
            runs(&fixed, &[every_fifth]),
            [[104, 0, 1], [124, 1, 1], [144, 2, 1]]
        );
        assert_eq!(runs(&variable(&[], false), &[]), [[100, 0, 1]]);
    }
}
