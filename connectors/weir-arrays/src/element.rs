//! The types of elements, and conversions between them.
//!
//! A program's memory holds elements in the machine's byte order ("native"), a file holds them with the most significant
//! byte first ("external"). The eleven types are those of netCDF (`nc_type` 1 to 11).
//!
//! A value that the other type cannot hold is out of range (`NC_ERANGE`): the fill value takes its place. Real numbers lose
//! their fraction in integers, as in C.

use serde::{Deserialize, Serialize};

/// The type of an element. The numbers are those of `nc_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum ElementType {
    /// `NC_BYTE`: signed.
    I8 = 1,
    /// `NC_CHAR`: text, which is not converted.
    Text = 2,
    /// `NC_SHORT`.
    I16 = 3,
    /// `NC_INT`.
    I32 = 4,
    /// `NC_FLOAT`.
    F32 = 5,
    /// `NC_DOUBLE`.
    F64 = 6,
    /// `NC_UBYTE`.
    U8 = 7,
    /// `NC_USHORT`.
    U16 = 8,
    /// `NC_UINT`.
    U32 = 9,
    /// `NC_INT64`.
    I64 = 10,
    /// `NC_UINT64`.
    U64 = 11,
}

/// A value during a conversion. Each type's values are exact in one of the variants.
#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Real(f64),
}

impl ElementType {
    const ALL: [ElementType; 11] = [
        ElementType::I8,
        ElementType::Text,
        ElementType::I16,
        ElementType::I32,
        ElementType::F32,
        ElementType::F64,
        ElementType::U8,
        ElementType::U16,
        ElementType::U32,
        ElementType::I64,
        ElementType::U64,
    ];

    /// The type with an `nc_type`; `None`: there is none.
    pub fn from_number(number: i64) -> Option<ElementType> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| i64::from(*known as u8) == number)
    }

    /// The `nc_type`.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Bytes of an element, 1 to 8, in memory and in a file alike.
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::Text | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The name in netCDF's language for definitions (CDL).
    pub fn name(self) -> &'static str {
        match self {
            Self::I8 => "byte",
            Self::Text => "char",
            Self::I16 => "short",
            Self::I32 => "int",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::U8 => "ubyte",
            Self::U16 => "ushort",
            Self::U32 => "uint",
            Self::I64 => "int64",
            Self::U64 => "uint64",
        }
    }

    /// The fill value of variables that have none of their own (`NC_FILL_*`), external.
    pub fn default_fill(self) -> Vec<u8> {
        match self {
            Self::I8 => (-127_i8).to_be_bytes().to_vec(),
            Self::Text => vec![0],
            Self::I16 => (-32767_i16).to_be_bytes().to_vec(),
            Self::I32 => (-2_147_483_647_i32).to_be_bytes().to_vec(),
            Self::F32 => 9.969_21e36_f32.to_be_bytes().to_vec(),
            Self::F64 => 9.969_209_968_386_869e36_f64.to_be_bytes().to_vec(),
            Self::U8 => vec![u8::MAX],
            Self::U16 => u16::MAX.to_be_bytes().to_vec(),
            Self::U32 => u32::MAX.to_be_bytes().to_vec(),
            Self::I64 => (-9_223_372_036_854_775_806_i64).to_be_bytes().to_vec(),
            Self::U64 => (u64::MAX - 1).to_be_bytes().to_vec(),
        }
    }

    /// An external element as a decimal number. `element` has the length of one element.
    pub fn text(self, element: &[u8]) -> String {
        let mut native = Vec::new();
        append_swapped(element, element.len(), &mut native);
        match (self, self.native(&native)) {
            (_, Number::Integer(value)) => value.to_string(),
            // The shortest text that reads as the same number of its own type.
            #[expect(clippy::cast_possible_truncation, reason = "it was one")]
            (Self::F32, Number::Real(value)) => (value as f32).to_string(),
            (_, Number::Real(value)) => value.to_string(),
        }
    }

    /// The value of a native element. `bytes` has the length of one element.
    fn native(self, bytes: &[u8]) -> Number {
        macro_rules! read {
            ($kind:ident $variant:ident $wide:ty) => {
                Number::$variant(<$wide>::from($kind::from_ne_bytes(
                    bytes.try_into().expect("one element"),
                )))
            };
        }
        match self {
            Self::I8 => read!(i8 Integer i128),
            Self::Text | Self::U8 => read!(u8 Integer i128),
            Self::I16 => read!(i16 Integer i128),
            Self::I32 => read!(i32 Integer i128),
            Self::U16 => read!(u16 Integer i128),
            Self::U32 => read!(u32 Integer i128),
            Self::I64 => read!(i64 Integer i128),
            Self::U64 => read!(u64 Integer i128),
            Self::F32 => read!(f32 Real f64),
            Self::F64 => read!(f64 Real f64),
        }
    }

    /// Appends a value as an external element. False: it is out of range, and nothing is appended.
    fn append_external(self, value: Number, out: &mut Vec<u8>) -> bool {
        macro_rules! append {
            ($kind:ident) => {
                match whole::<$kind>(value, i128::from($kind::MIN), i128::from($kind::MAX)) {
                    Some(value) => out.extend(value.to_be_bytes()),
                    None => return false,
                }
            };
        }
        match self {
            Self::I8 => append!(i8),
            Self::Text | Self::U8 => append!(u8),
            Self::I16 => append!(i16),
            Self::I32 => append!(i32),
            Self::U16 => append!(u16),
            Self::U32 => append!(u32),
            Self::I64 => append!(i64),
            Self::U64 => append!(u64),
            Self::F32 => match value {
                Number::Real(value) if value.abs() > f64::from(f32::MAX) => return false,
                #[expect(clippy::cast_possible_truncation, reason = "to the nearest, as in C")]
                Number::Real(value) => out.extend((value as f32).to_be_bytes()),
                #[expect(clippy::cast_precision_loss, reason = "to the nearest, as in C")]
                Number::Integer(value) => out.extend((value as f32).to_be_bytes()),
            },
            Self::F64 => match value {
                Number::Real(value) => out.extend(value.to_be_bytes()),
                #[expect(clippy::cast_precision_loss, reason = "to the nearest, as in C")]
                Number::Integer(value) => out.extend((value as f64).to_be_bytes()),
            },
        }
        true
    }
}

/// A value as an integer between two bounds.
fn whole<T: TryFrom<i128>>(value: Number, lowest: i128, highest: i128) -> Option<T> {
    let value = match value {
        Number::Integer(value) => value,
        // NaN converts as on x86-64: to the lowest signed integer of 32 or 64 bits; other types take its lower bits, which are
        // zero.
        Number::Real(value) if value.is_nan() => match lowest {
            lowest if lowest <= i128::from(i32::MIN) => lowest,
            _ => 0,
        },
        Number::Real(value) => {
            #[expect(clippy::cast_precision_loss, reason = "as netCDF compares them")]
            let (lowest_real, highest_real) = (lowest as f64, highest as f64);
            if value < lowest_real || value > highest_real {
                return None;
            }
            #[expect(clippy::cast_possible_truncation, reason = "without its fraction")]
            let value = value as i128;
            // A real number that equals the rounded bound passes the comparison: it is the highest integer.
            value.clamp(lowest, highest)
        }
    };
    T::try_from(value).ok()
}

/// A pair of types: of elements in memory and in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// The type of the elements in memory.
    pub memory: ElementType,
    /// The type of the elements in the file.
    pub external: ElementType,
}

impl Conversion {
    /// A conversion between a program's memory and a variable. `None`: text is not converted to numbers, nor numbers to text
    /// (`NC_ECHAR`). In the formats before CDF-5, `unsigned char` in memory keeps the bits of an `NC_BYTE`.
    pub fn new(memory: ElementType, external: ElementType, is_cdf5: bool) -> Option<Conversion> {
        let is_text = |element| element == ElementType::Text;
        if is_text(memory) != is_text(external) {
            return None;
        }
        let external = match (memory, external) {
            (ElementType::U8, ElementType::I8) if !is_cdf5 => ElementType::U8,
            _ => external,
        };
        Some(Conversion { memory, external })
    }

    /// True if no value changes in the conversion.
    pub fn is_exact(self) -> bool {
        self.memory == self.external
    }

    /// Appends native elements as external ones. The external element `fill` replaces each one that is out of range. Returns false
    /// if one was out of range. Bytes after the last whole element are ignored.
    pub fn to_external(self, native: &[u8], fill: &[u8], out: &mut Vec<u8>) -> bool {
        if self.is_exact() {
            append_swapped(native, self.memory.bytes(), out);
            return true;
        }
        let mut fits = true;
        for element in native.chunks_exact(self.memory.bytes()) {
            if !self
                .external
                .append_external(self.memory.native(element), out)
            {
                fits = false;
                out.extend(fill);
            }
        }
        fits
    }

    /// Appends external elements as native ones. The default fill value of the type in memory replaces each one that is out of
    /// range. Returns false if one was out of range.
    pub fn to_native(self, external: &[u8], out: &mut Vec<u8>) -> bool {
        if self.is_exact() {
            append_swapped(external, self.memory.bytes(), out);
            return true;
        }
        let mut fits = true;
        let mut turned = Vec::new();
        let mut converted = Vec::new();
        for element in external.chunks_exact(self.external.bytes()) {
            turned.clear();
            append_swapped(element, element.len(), &mut turned);
            converted.clear();
            if !self
                .memory
                .append_external(self.external.native(&turned), &mut converted)
            {
                fits = false;
                converted = self.memory.default_fill();
            }
            append_swapped(&converted, converted.len(), out);
        }
        fits
    }

    /// True if all native elements are in range.
    pub fn fits(self, native: &[u8]) -> bool {
        if self.is_exact() {
            return true;
        }
        let mut converted = Vec::with_capacity(8);
        native.chunks_exact(self.memory.bytes()).all(|element| {
            converted.clear();
            self.external
                .append_external(self.memory.native(element), &mut converted)
        })
    }
}

/// Appends elements, with their bytes reversed if the machine's byte order is not that of files.
fn append_swapped(elements: &[u8], bytes: usize, out: &mut Vec<u8>) {
    if bytes == 1 || cfg!(target_endian = "big") {
        out.extend_from_slice(&elements[..elements.len() / bytes * bytes]);
        return;
    }
    let start = out.len();
    out.resize(start + elements.len() / bytes * bytes, 0);
    let out = &mut out[start..];
    macro_rules! swap {
        ($kind:ident) => {
            for (turned, element) in out.as_chunks_mut().0.iter_mut().zip(elements.as_chunks().0) {
                *turned = $kind::from_be_bytes(*element).to_ne_bytes();
            }
        };
    }
    match bytes {
        2 => swap!(u16),
        4 => swap!(u32),
        _ => swap!(u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external(memory: ElementType, external: ElementType, native: &[u8]) -> (Vec<u8>, bool) {
        let conversion = Conversion::new(memory, external, true).unwrap();
        let mut out = Vec::new();
        let fits = conversion.to_external(native, &external.default_fill(), &mut out);
        assert_eq!(conversion.fits(native), fits);
        (out, fits)
    }

    #[test]
    fn the_same_type_changes_the_order_of_bytes() {
        let (out, fits) = external(
            ElementType::I32,
            ElementType::I32,
            &0x0102_0304_i32.to_ne_bytes(),
        );
        assert_eq!((out, fits), (vec![1, 2, 3, 4], true));
        let (out, _) = external(ElementType::F64, ElementType::F64, &1.5_f64.to_ne_bytes());
        assert_eq!(out, 1.5_f64.to_be_bytes());
    }

    #[test]
    fn a_value_out_of_range_is_filled() {
        let native = [1_i32, 70_000].map(i32::to_ne_bytes).concat();
        let (out, fits) = external(ElementType::I32, ElementType::I16, &native);
        assert_eq!(
            (out, fits),
            ([1_i16, -32767].map(i16::to_be_bytes).concat(), false)
        );
        for (value, fits) in [
            (1e39, false),
            (f64::INFINITY, false),
            (f64::NAN, true),
            (3.4e38, true),
        ] {
            let (_, is_in_range) =
                external(ElementType::F64, ElementType::F32, &f64::to_ne_bytes(value));
            assert_eq!(is_in_range, fits, "{value}");
        }
    }

    #[test]
    fn real_numbers_lose_their_fraction() {
        for (value, wanted) in [(2.9, 2), (-2.9, -2), (f64::NAN, i32::MIN)] {
            let (out, fits) =
                external(ElementType::F64, ElementType::I32, &f64::to_ne_bytes(value));
            assert_eq!(
                (out, fits),
                (i32::to_be_bytes(wanted).to_vec(), true),
                "{value}"
            );
        }
        let edge = 9_223_372_036_854_775_808.0_f64;
        let (out, fits) = external(ElementType::F64, ElementType::I64, &edge.to_ne_bytes());
        assert_eq!((out, fits), (i64::MAX.to_be_bytes().to_vec(), true));
        let (_, fits) = external(ElementType::F64, ElementType::U8, &(-0.5_f64).to_ne_bytes());
        assert!(!fits);
    }

    #[test]
    fn text_is_not_converted() {
        assert_eq!(
            Conversion::new(ElementType::Text, ElementType::I8, true),
            None
        );
        assert_eq!(
            Conversion::new(ElementType::I32, ElementType::Text, true),
            None
        );
        let bytes = Conversion::new(ElementType::U8, ElementType::I8, false).unwrap();
        assert!(bytes.fits(&[200]));
        let bytes = Conversion::new(ElementType::U8, ElementType::I8, true).unwrap();
        assert!(!bytes.fits(&[200]));
    }

    #[test]
    fn what_is_written_is_read() {
        let conversion = Conversion::new(ElementType::I64, ElementType::F32, true).unwrap();
        let native = [5_i64, -7].map(i64::to_ne_bytes).concat();
        let (mut out, mut back) = (Vec::new(), Vec::new());
        assert!(conversion.to_external(&native, &[0; 4], &mut out));
        assert_eq!(out, [5_f32, -7.0].map(f32::to_be_bytes).concat());
        assert!(conversion.to_native(&out, &mut back));
        assert_eq!(back, native);
    }
}
