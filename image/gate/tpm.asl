// Handed to the kernel together with the TPM2 table: where a TPM 2.0 answers (TCG PC Client Platform TPM Profile, 6.3).
// aml.h holds what iasl makes of it; a test compares.
DefinitionBlock ("", "SSDT", 2, "APPL  ", "GATE    ", 1)
{
  Device (\_SB.TPM)
  {
    Name (_HID, "MSFT0101")
    Name (_CRS, ResourceTemplate () { Memory32Fixed (ReadWrite, 0xFED40000, 0x5000) })
  }
}
