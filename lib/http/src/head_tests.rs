//! Tests of finding and parsing heads.
