// The only description of the machine in bytecode: how it goes off, and that it has a PCI bus.
// aml.h holds what iasl makes of it; a test compares.
DefinitionBlock ("", "DSDT", 2, "APPL  ", "GATE    ", 1)
{
  // QEMU's value of SLP_TYP for "off" (q35 and pc)
  Name (\_S5, Package (4) { Zero, Zero, Zero, Zero })

  // Windows of memory are not named here: `pci=nocrs` on the measured command line.
  Device (\_SB.PCI0)
  {
    Name (_HID, EisaId ("PNP0A08"))
    Name (_CID, EisaId ("PNP0A03"))
    Name (_UID, Zero)
    Name (_CRS, ResourceTemplate ()
    {
      WordBusNumber (ResourceProducer, MinFixed, MaxFixed, PosDecode, 0, 0, 0xFF, 0, 0x100)
      IO (Decode16, 0x0CF8, 0x0CF8, 1, 8)
    })
  }
}
