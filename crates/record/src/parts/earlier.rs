//! Parts written by an earlier version.

use parquet::data_type::{BoolType, ByteArrayType, Int32Type, Int64Type};

use super::sealed::Columns;
use super::*;

/// Writes a part with one row that has all columns except those added later.
fn write_part_of_an_earlier_version(path: &Path) {
    let all = parse_message_type(&RequestRow::schema()).unwrap();
    let is_old = |column: &&Arc<Type>| !RequestRow::ADDED.contains(&column.name());
    let old = all.get_fields().iter().filter(is_old).cloned().collect();
    let schema = Arc::new(Type::group_type_builder("requests").with_fields(old).build().unwrap());
    let file = File::create(path).unwrap();
    let mut file = SerializedFileWriter::new(file, Arc::clone(&schema), Arc::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    for field in schema.get_fields() {
        let mut column = group.next_column().unwrap().unwrap();
        let text = match field.name() {
            "phase" => "main",
            "outcome" | "final_outcome" => "ok",
            "tls_session" => "1.3",
            _ => "x",
        };
        let levels = field.is_optional().then_some(&[1_i16][..]);
        let written = match field.get_physical_type() {
            PhysicalType::BOOLEAN => column.typed::<BoolType>().write_batch(&[true], levels, None),
            PhysicalType::INT32 => column.typed::<Int32Type>().write_batch(&[7], levels, None),
            PhysicalType::INT64 => column.typed::<Int64Type>().write_batch(&[7], levels, None),
            _ => column.typed::<ByteArrayType>().write_batch(&[text.into()], levels, None),
        };
        assert_eq!(written.unwrap(), 1);
        column.close().unwrap();
    }
    group.close().unwrap();
    file.close().unwrap();
}

#[test]
fn missing_older_columns_read_as_null() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(RequestRow::TABLE)).unwrap();
    write_part_of_an_earlier_version(&dir.path().join(RequestRow::TABLE).join("load-0-00000.parquet"));
    let rows = read_table::<RequestRow>(dir.path()).unwrap();
    let row = &rows[0];
    assert_eq!((row.remote_addr.as_deref(), row.routed_to, row.bytes_sent), (Some("x"), None, 7));
    assert_eq!((row.pod.as_deref(), row.attempts), (Some("x"), 7));
}
