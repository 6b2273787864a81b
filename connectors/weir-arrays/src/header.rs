//! The header of a file of netCDF's classic formats: its variables, and its number of records.
//!
//! ```text
//! "CDF", version (1, 2, 5) | records | dimensions | attributes | variables
//! ```
//!
//! Numbers have the most significant byte first. Counts have 4 bytes, or 8 in CDF-5; offsets have 4 in CDF-1, else 8 ("NetCDF
//! Classic Format Specification", Unidata). The file is not trusted: each number is checked before it is used.

use crate::definitions::{FileDefinitions, Variable};
use crate::element::ElementType;

/// The offset of the number of records, bytes.
pub const RECORDS_OFFSET: u64 = 4;

const DIMENSIONS: u32 = 0x0a;
const VARIABLES: u32 = 0x0b;
const ATTRIBUTES: u32 = 0x0c;

/// A failure to read a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// It does not begin with "CDF" and a known version.
    #[error("it is no file of netCDF's classic formats")]
    NotClassic,
    /// More bytes of the file are needed.
    #[error("its header is cut off")]
    Short,
    /// It has an impossible number.
    #[error("its header is damaged")]
    Damaged,
}

/// A header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// The variables. Their fill values are the defaults.
    pub definitions: FileDefinitions,
    /// The number of records in the file.
    pub records: u64,
    /// Bytes of a count: 4 or 8.
    pub count_bytes: u8,
}

impl FileHeader {
    /// Reads a header from the beginning of a file.
    ///
    /// # Errors
    ///
    /// See [`HeaderError`]; with [`HeaderError::Short`] more bytes may help.
    pub fn read(file: &[u8]) -> Result<FileHeader, HeaderError> {
        let version = match file.first_chunk() {
            Some([b'C', b'D', b'F', version @ (1 | 2 | 5)]) => *version,
            Some(_) => return Err(HeaderError::NotClassic),
            None => return Err(HeaderError::Short),
        };
        let mut reader = HeaderReader {
            rest: &file[4..],
            count_bytes: if version == 5 { 8 } else { 4 },
            offset_bytes: if version == 1 { 4 } else { 8 },
        };
        let records = reader.count()?;
        let mut dimensions: Vec<u64> = Vec::new();
        for _ in 0..reader.list(DIMENSIONS)? {
            reader.name()?;
            dimensions.push(reader.count()?);
        }
        reader.skip_attributes()?;
        let mut variables = Vec::new();
        for _ in 0..reader.list(VARIABLES)? {
            variables.push(reader.variable(&dimensions)?);
        }
        let is_streaming = records == u64::from(u32::MAX) && version != 5 || records == u64::MAX;
        Ok(FileHeader {
            definitions: FileDefinitions {
                is_cdf5: version == 5,
                record_bytes: record_bytes(&variables).ok_or(HeaderError::Damaged)?,
                variables,
            },
            records: if is_streaming { 0 } else { records },
            count_bytes: reader.count_bytes,
        })
    }

    /// True if these are the variables of a log, at the same offsets. Fill values are not compared.
    pub fn is_that_of(&self, definitions: &FileDefinitions) -> bool {
        let own = &self.definitions;
        let is_same = |(one, other): (&Variable, &Variable)| {
            let fixed = usize::from(one.is_record);
            one.name == other.name
                && one.external == other.external
                && one.is_record == other.is_record
                && one.begin == other.begin
                && one.shape.get(fixed..) == other.shape.get(fixed..)
        };
        own.is_cdf5 == definitions.is_cdf5
            && own.record_bytes == definitions.record_bytes
            && own.variables.len() == definitions.variables.len()
            && own
                .variables
                .iter()
                .zip(&definitions.variables)
                .all(is_same)
    }

    /// The encoding of a number of records in the file.
    pub fn encoded_records(&self, records: u64) -> Vec<u8> {
        let bytes = records.to_be_bytes();
        bytes[bytes.len() - usize::from(self.count_bytes)..].to_vec()
    }
}

/// Bytes from a record to the next one. A record variable's part of it is a multiple of 4, unless it is the only one.
fn record_bytes(variables: &[Variable]) -> Option<u64> {
    let records = variables.iter().filter(|variable| variable.is_record);
    let bytes = records.map(|variable| {
        let mut lengths = variable.shape[1..].iter();
        lengths.try_fold(variable.external.bytes() as u64, |bytes, length| {
            bytes.checked_mul(*length)
        })
    });
    let bytes: Vec<u64> = bytes.collect::<Option<_>>()?;
    match bytes[..] {
        [alone] => Some(alone),
        _ => bytes.iter().try_fold(0_u64, |all, bytes| {
            all.checked_add(bytes.checked_next_multiple_of(4)?)
        }),
    }
}

/// The rest of a header, during decoding.
struct HeaderReader<'a> {
    rest: &'a [u8],
    count_bytes: u8,
    offset_bytes: u8,
}

impl<'a> HeaderReader<'a> {
    fn take_bytes(&mut self, bytes: u64) -> Result<&'a [u8], HeaderError> {
        let bytes = usize::try_from(bytes).map_err(|_| HeaderError::Damaged)?;
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(HeaderError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: u8) -> Result<u64, HeaderError> {
        let bytes = self.take_bytes(bytes.into())?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn count(&mut self) -> Result<u64, HeaderError> {
        self.number(self.count_bytes)
    }

    /// The length of the list with this tag; 0 if it is absent.
    fn list(&mut self, tag: u32) -> Result<u64, HeaderError> {
        let found = self.number(4)?;
        let length = self.count()?;
        match found == u64::from(tag) || found == 0 && length == 0 {
            true => Ok(length),
            false => Err(HeaderError::Damaged),
        }
    }

    /// Takes `bytes` bytes and their padding to a multiple of 4. Returns them without the padding.
    fn padded(&mut self, bytes: u64) -> Result<&'a [u8], HeaderError> {
        let padded = bytes
            .checked_next_multiple_of(4)
            .ok_or(HeaderError::Damaged)?;
        let taken = self.take_bytes(padded)?;
        Ok(&taken[..taken.len() - usize::try_from(padded - bytes).expect("at most three")])
    }

    fn name(&mut self) -> Result<String, HeaderError> {
        let bytes = self.count()?;
        let name = self.padded(bytes)?.to_vec();
        String::from_utf8(name).map_err(|_| HeaderError::Damaged)
    }

    fn element(&mut self) -> Result<ElementType, HeaderError> {
        let number = self.number(4)?;
        let number = i64::try_from(number).ok();
        number
            .and_then(ElementType::from_number)
            .ok_or(HeaderError::Damaged)
    }

    fn skip_attributes(&mut self) -> Result<(), HeaderError> {
        for _ in 0..self.list(ATTRIBUTES)? {
            self.name()?;
            let element = self.element()?;
            let bytes = self.count()?.checked_mul(element.bytes() as u64);
            self.padded(bytes.ok_or(HeaderError::Damaged)?)?;
        }
        Ok(())
    }

    fn variable(&mut self, dimensions: &[u64]) -> Result<Variable, HeaderError> {
        let name = self.name()?;
        let rank = self.count()?;
        let mut shape = Vec::new();
        for _ in 0..rank {
            let number = usize::try_from(self.count()?).map_err(|_| HeaderError::Damaged)?;
            shape.push(*dimensions.get(number).ok_or(HeaderError::Damaged)?);
        }
        self.skip_attributes()?;
        let external = self.element()?;
        // `vsize` is not used: it cannot hold the size of a large variable.
        self.count()?;
        Ok(Variable {
            name,
            external,
            is_record: shape.first() == Some(&0),
            begin: self.number(self.offset_bytes)?,
            fill: external.default_fill(),
            shape,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CDF-1: `time` unlimited, `x` = 3; an attribute; `short a(time, x)`, `double b(x)`.
    fn header() -> Vec<u8> {
        let mut bytes = b"CDF\x01".to_vec();
        let number = |bytes: &mut Vec<u8>, number: u32| bytes.extend(number.to_be_bytes());
        let name = |bytes: &mut Vec<u8>, name: &str| {
            bytes.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
            bytes.extend(name.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        };
        number(&mut bytes, 2);
        for dimension in [0x0a, 2] {
            number(&mut bytes, dimension);
        }
        name(&mut bytes, "time");
        number(&mut bytes, 0);
        name(&mut bytes, "x");
        number(&mut bytes, 3);
        for attribute in [0x0c, 1] {
            number(&mut bytes, attribute);
        }
        name(&mut bytes, "title");
        for kind in [2, 5] {
            number(&mut bytes, kind);
        }
        bytes.extend(b"hello\0\0\0");
        for variable in [0x0b, 2] {
            number(&mut bytes, variable);
        }
        name(&mut bytes, "a");
        for item in [2, 0, 1, 0, 0, 3, 8, 500] {
            number(&mut bytes, item);
        }
        name(&mut bytes, "b");
        for item in [1, 1, 0, 0, 6, 24, 400] {
            number(&mut bytes, item);
        }
        bytes
    }

    #[test]
    fn variables_and_records_are_read() {
        let header = FileHeader::read(&header()).unwrap();
        let [a, b] = &header.definitions.variables[..] else {
            panic!("two variables");
        };
        assert_eq!(
            (a.name.as_str(), a.external, a.is_record, a.begin),
            ("a", ElementType::I16, true, 500)
        );
        assert_eq!(
            (b.name.as_str(), b.external, b.shape.as_slice(), b.begin),
            ("b", ElementType::F64, &[3][..], 400)
        );
        // The only record variable: its records are not padded.
        assert_eq!((header.records, header.definitions.record_bytes), (2, 6));
        assert_eq!(header.encoded_records(3), [0, 0, 0, 3]);
        assert!(header.is_that_of(&header.definitions));
        let mut moved = header.definitions.clone();
        moved.variables[0].begin += 4;
        assert!(!header.is_that_of(&moved));
    }

    #[test]
    fn a_header_that_is_cut_off_or_damaged_is_refused() {
        let header = header();
        for end in 0..header.len() {
            assert_eq!(
                FileHeader::read(&header[..end]).unwrap_err(),
                HeaderError::Short,
                "{end}"
            );
        }
        assert_eq!(
            FileHeader::read(b"\x89HDF\r\n").unwrap_err(),
            HeaderError::NotClassic
        );
        for at in 4..header.len() {
            let mut damaged = header.clone();
            damaged[at] = 0xff;
            // Whatever comes of it, it is no panic.
            let _ = FileHeader::read(&damaged);
        }
    }
}
