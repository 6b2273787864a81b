//! weir-client
